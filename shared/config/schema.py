"""The sections of a run's configuration.

A section belongs to the role that reads it, or is named for what it governs. Counts start with
`num_`, a number carries its unit, and a rule over two fields names both and the remedy.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from shared.config.data import DataSection
from shared.config.sampling import GeneratorSection
from shared.config.section import Fraction, PositiveInt, Section
from shared.states import Stage

Dtype = Literal["float32", "bfloat16", "float16"]


class TargetSection(Section):
    """The frozen target model."""

    path: str = Field(description="Local folder, or 'builtin:tiny' for the target that ships")
    dtype: Dtype = "bfloat16"
    trust_remote_code: Literal[False] = False


class BatcherSection(Section):
    """Gated samples, shards and micro-batches."""

    segment_samples: PositiveInt = Field(64, description="Accepted samples in a sealed shard")
    max_length: PositiveInt = Field(3072, description="Tokens of a sample; longer ones are cut")
    micro_batch_size: PositiveInt = 1
    num_length_buckets: PositiveInt = 8


class GateSection(Section):
    """Quality gates. Shares are of the window or of everything seen so far."""

    min_supervised_tokens: PositiveInt = 8
    drop_truncated: bool = True
    require_closed_thinking: bool = True
    max_repeated_ngram_share: Fraction = 0.6
    near_duplicates: bool = True
    near_duplicate_similarity: Fraction = 0.9
    window_completions: PositiveInt = 256
    window_share_of_prompts: Fraction = 0.25
    max_rejected_share: Fraction = Field(0.5, description="Of all samples, any reason")
    max_reason_share: Fraction = Field(0.3, description="Of all samples, one reason")
    max_same_response_share: Fraction = Field(0.2, description="Most frequent answer")


class TargetForwardSection(Section):
    num_workers: PositiveInt = 1
    devices: list[str] = Field(["auto"], description="One for each worker, or one for all")
    num_threads: PositiveInt | None = Field(None, description="CPU threads of a worker")


class DrafterSection(Section):
    """Shape of the drafter; what is not given follows the target."""

    num_hidden_layers: PositiveInt = 5
    block_size: int = Field(16, ge=2)
    mask_token_id: int | None = None
    target_layer_ids: list[int] | None = None
    num_attention_heads: PositiveInt | None = None
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    sliding_window: PositiveInt | None = None
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None

    @model_validator(mode="after")
    def _layer_types_match(self) -> DrafterSection:
        if self.layer_types is None:
            if self.sliding_window is not None:
                raise ValueError(
                    "drafter.sliding_window is set but drafter.layer_types is not: "
                    "list a type for each layer, or remove sliding_window"
                )
            return self
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"drafter.layer_types has {len(self.layer_types)} entries but "
                f"drafter.num_hidden_layers is {self.num_hidden_layers}: give one for each layer"
            )
        if "sliding_attention" in self.layer_types and self.sliding_window is None:
            raise ValueError(
                "drafter.layer_types has sliding_attention but drafter.sliding_window is not set"
            )
        return self


class TrainerSection(Section):
    """Optimizer, objective and checkpoints of the drafter trainer."""

    lr: float = Field(6e-4, gt=0)
    warmup_ratio: Fraction = 0.04
    weight_decay: float = Field(0.0, ge=0)
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    grad_clip: float = Field(1.0, gt=0)
    dtype: Dtype = "bfloat16"
    device: str = "auto"
    num_threads: PositiveInt | None = None
    num_anchors: PositiveInt = 512
    objective: Literal["decay", "dpace"] = "decay"
    gamma: float | None = Field(None, gt=0, description="None: 7, 5 or 4 for block 16, 10, 8")
    alpha: Fraction = 0.5
    loss_chunk_blocks: PositiveInt = 64
    checkpoint_every_steps: PositiveInt = 500
    keep_checkpoints: PositiveInt = 3
    nonfinite_steps_limit: PositiveInt = 20
    divergence_factor: float = Field(4.0, gt=1, description="Loss over its best running mean")
    on_divergence: Literal["warn", "pause", "stop"] = "warn"


class TrainSection(Section):
    """What training goes over, and how the stages overlap."""

    mode: Literal["asynchronous", "synchronous"] = "asynchronous"
    num_epochs: PositiveInt = 6
    micro_batches_per_step: PositiveInt = 4
    max_steps: PositiveInt | None = None
    num_ranks: Literal[1] = 1


class LinksSection(Section):
    """Payload plane and back-pressure of every link."""

    plane: Literal["auto", "shm", "zmq"] = "auto"
    max_messages: PositiveInt = 16
    max_bytes: PositiveInt = 512 * 2**20
    host: str = Field("127.0.0.1", description="Address that workers bind their links to")
    encrypt: bool = Field(True, description="CURVE on every link")


class EvaluateSection(Section):
    """Acceptance length by real speculative decoding on held-out prompts."""

    num_prompts: PositiveInt = 32
    max_new_tokens: PositiveInt = 256
    every_checkpoints: int = Field(0, ge=0, description="0: only after training")
    baselines: bool = Field(True, description="Untrained drafter and prompt lookup beside it")
    device: str = "auto"
    num_threads: PositiveInt | None = None


class ArchiveSection(Section):
    """Archiving beside the run: documents of the run folder always, files with a destination."""

    destination: str | None = Field(None, description="file:///... or s3://bucket/prefix")
    worker: bool = Field(
        True, description="Keeps manifest.json, PROGRESS.md and hardware.json of the run true"
    )

    @model_validator(mode="after")
    def _a_destination_needs_a_worker(self) -> ArchiveSection:
        if self.destination is not None and not self.worker:
            raise ValueError(
                "archive.destination is set but archive.worker is false: nobody would upload; "
                "remove one of the two"
            )
        return self


class SupervisionSection(Section):
    heartbeat_s: float = Field(2.0, gt=0)
    lease_s: float = Field(20.0, gt=0, description="Silence after which a worker is dead")
    startup_s: float = Field(300.0, gt=0, description="Time a worker has to register")
    orphan_grace_s: float = Field(300.0, ge=0)
    drain_deadline_s: float = Field(60.0, gt=0)
    backoff_s: float = Field(0.5, gt=0)
    max_backoff_s: float = Field(30.0, gt=0)
    breaker_restarts: PositiveInt = Field(5, description="Restarts within the window that trip it")
    breaker_window_s: float = Field(300.0, gt=0)
    stall_s: float = Field(600.0, gt=0, description="Heartbeats but no progress")
    webhook_env: str | None = Field(None, description="Environment variable with the alert URL")

    @model_validator(mode="after")
    def _lease_outlives_heartbeats(self) -> SupervisionSection:
        if self.lease_s < 3 * self.heartbeat_s:
            raise ValueError(
                f"supervision.lease_s ({self.lease_s}) must be at least three times "
                f"supervision.heartbeat_s ({self.heartbeat_s}): raise the lease"
            )
        return self


class RunConfig(Section):
    """A whole run."""

    name: str = Field("run", min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][\w.+-]*$")
    seed: int = Field(0, ge=0)
    stages: list[Stage] = Field([Stage.GENERATE, Stage.TOKENISE, Stage.TRAIN, Stage.EVALUATE])
    target: TargetSection
    data: DataSection = DataSection()
    generator: GeneratorSection = GeneratorSection()
    batcher: BatcherSection = BatcherSection()
    gates: GateSection = GateSection()
    target_forward: TargetForwardSection = TargetForwardSection()
    drafter: DrafterSection = DrafterSection()
    trainer: TrainerSection = TrainerSection()
    train: TrainSection = TrainSection()
    links: LinksSection = LinksSection()
    evaluate: EvaluateSection = EvaluateSection()
    archive: ArchiveSection = ArchiveSection()
    supervision: SupervisionSection = SupervisionSection()

    @model_validator(mode="after")
    def _stages_have_inputs(self) -> RunConfig:
        if not self.stages or len(set(self.stages)) != len(self.stages):
            raise ValueError("stages must name each wanted stage once, and at least one")
        if Stage.GENERATE in self.stages and self.data.prompts is None:
            raise ValueError("stages has 'generate' but data.prompts is not set: name a file")
        if Stage.GENERATE in self.stages and Stage.TOKENISE not in self.stages:
            raise ValueError(
                "stages has 'generate' without 'tokenise': completions become samples in the "
                "tokenise stage, so add it"
            )
        if Stage.TOKENISE in self.stages and Stage.GENERATE not in self.stages:
            raise ValueError(
                "stages has 'tokenise' without 'generate': give data.dataset (shards) and leave "
                "'tokenise' out, or add 'generate'"
            )
        if self.data.dataset is None and Stage.GENERATE not in self.stages:
            raise ValueError(
                "stages has 'train' without 'generate', so data.dataset must name a folder "
                "of Arrow shards"
            )
        if Stage.GENERATE in self.stages and self.data.dataset is not None:
            raise ValueError("data.dataset is set but stages has 'generate': remove one of the two")
        if Stage.EVALUATE in self.stages and Stage.TRAIN not in self.stages:
            raise ValueError("stages has 'evaluate' without 'train': evaluate needs a checkpoint")
        return self

    @model_validator(mode="after")
    def _devices_match_workers(self) -> RunConfig:
        given, wanted = len(self.target_forward.devices), self.target_forward.num_workers
        if given not in (1, wanted):
            raise ValueError(
                f"target_forward.devices has {given} entries but target_forward.num_workers is "
                f"{wanted}: give one device for all, or one for each worker"
            )
        return self
