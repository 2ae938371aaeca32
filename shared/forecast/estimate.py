"""Storage, bandwidth, memory, time and cost of a run, as one pure function.

Model FLOPs of a token, forward: 2 x active parameters of the layers up to the last captured one.
Of a training sample: 6 x (anchors x block_size) x drafter parameters, 6 x context projections,
4 x supervised slots x lm_head (forward and input gradient; it is frozen). Attention scores are
left out of both; for 3,072 tokens they add under a tenth. The efficiencies are the measured
shares of the data-sheet peak that `docs/benchmarks.md` lists, and can be given.
"""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict, Field

from shared.config import RunConfig
from shared.forecast.gpus import Gpu
from shared.forecast.shapes import TargetShape
from shared.states import Stage

TARGET_EFFICIENCY = 0.55
TRAINER_EFFICIENCY = 0.40
GENERATED_TOKENS_PER_S = 3700.0  # one server of the original run: 26.1 Ktok/s over 7 GPUs
BYTES_PER_COMPLETION_TOKEN = 4.4  # 7.25 GB of JSONL for 1.64 B output tokens
BYTES_PER_SHARD_TOKEN = 0.7  # 1.26 GB of shards for 1.87 B tokens, compressed
CURVE_SOCKET_BYTES_PER_S = 1.0e9
PLAIN_SOCKET_BYTES_PER_S = 2.4e9


class Forecast(BaseModel):
    """What a run will need; bytes, seconds, tokens and US dollars."""

    model_config = ConfigDict(extra="forbid")

    gpu: str | None
    num_samples: int
    tokens_per_sample: float
    tokens_per_epoch: float
    steps_total: int
    completions_bytes: float
    shards_bytes: float
    hidden_states_bytes_per_token: float
    hidden_states_offline_bytes: float = Field(description="Had they been stored; online: none")
    link_bytes_per_s: float
    link_sockets: int
    checkpoint_bytes: float
    checkpoints_bytes: float
    target_memory_bytes: float
    trainer_memory_bytes: float
    drafter_params: float
    generate_s: float | None
    train_s: float | None
    target_tokens_per_s: float | None
    trainer_tokens_per_s: float | None
    targets_per_trainer: float | None
    bottleneck: str | None
    num_gpus: int
    cost_usd: float | None
    warnings: list[str]


def drafter_params(config: RunConfig, shape: TargetShape, num_captured: int) -> float:
    """Trainable parameters of the drafter."""
    drafter = config.drafter
    heads = drafter.num_attention_heads or shape.num_attention_heads
    kv_heads = drafter.num_key_value_heads or shape.num_key_value_heads
    head_dim = drafter.head_dim or shape.head_dim
    intermediate = drafter.intermediate_size or shape.intermediate_size
    attention = shape.hidden_size * head_dim * (2 * heads + 2 * kv_heads)
    layer = attention + 3 * shape.hidden_size * intermediate + 2 * shape.hidden_size + 2 * head_dim
    fusion = num_captured * shape.hidden_size**2 + 2 * shape.hidden_size
    return float(drafter.num_hidden_layers * layer + fusion)


def forecast(
    config: RunConfig,
    shape: TargetShape,
    *,
    num_prompts: int,
    gpu: Gpu | None = None,
    tokens_per_sample: float | None = None,
    free_disk_bytes: float | None = None,
    target_efficiency: float = TARGET_EFFICIENCY,
    trainer_efficiency: float = TRAINER_EFFICIENCY,
) -> Forecast:
    """The forecast of `config` on `gpu` (None: sizes only, no times).

    `tokens_per_sample` defaults to two thirds of `batcher.max_length`. `num_prompts` counts
    training prompts; the share that the gates reject is not known yet and not subtracted.
    """
    length = tokens_per_sample or config.batcher.max_length * 2 / 3
    epochs = config.train.num_epochs if Stage.TRAIN in config.stages else 0
    per_step = config.batcher.micro_batch_size * config.train.micro_batches_per_step
    steps = epochs * math.ceil(num_prompts / per_step)
    if config.train.max_steps is not None:
        steps = min(steps, config.train.max_steps)
    tokens_epoch = num_prompts * length
    num_captured = len(config.drafter.target_layer_ids or []) or config.drafter.num_hidden_layers
    width = 2 if config.target.dtype != "float32" else 4
    hidden_bytes = float(num_captured * shape.hidden_size * width)
    params = drafter_params(config, shape, num_captured)
    checkpoint = params * (12 + (2 if config.trainer.dtype != "float32" else 4))
    head = shape.vocab_size * shape.hidden_size * width * (1 if shape.tied else 2)
    target_rate = trainer_rate = train_s = generate_s = cost = None
    bottleneck = ratio = None
    num_targets = config.target_forward.num_workers
    num_gpus = num_targets + config.train.num_ranks
    if gpu is not None:
        captured_share = _captured_share(config, shape)
        flops_token = 2 * shape.active_params_per_layer * shape.num_hidden_layers * captured_share
        peak = gpu.bf16_tflops * 1e12
        target_rate = peak * target_efficiency / flops_token
        trainer_rate = (
            length
            * peak
            * trainer_efficiency
            / _sample_flops(config, shape, params, length, num_captured)
        )
        ratio = trainer_rate / target_rate
        rate = min(num_targets * target_rate, config.train.num_ranks * trainer_rate)
        bottleneck = (
            "target_forward" if num_targets * target_rate <= trainer_rate else "drafter_trainer"
        )
        train_s = tokens_epoch * epochs / rate
        if Stage.GENERATE in config.stages:
            servers = config.generator.num_servers
            generate_s = tokens_epoch / (servers * GENERATED_TOKENS_PER_S)
        cost = num_gpus * max(train_s, generate_s or 0.0) / 3600 * gpu.usd_per_hour
    link_rate = hidden_bytes * min(
        num_targets * (target_rate or 0.0), config.train.num_ranks * (trainer_rate or 0.0)
    )
    socket = CURVE_SOCKET_BYTES_PER_S if config.links.encrypt else PLAIN_SOCKET_BYTES_PER_S
    result = Forecast(
        gpu=gpu.title if gpu else None,
        num_samples=num_prompts,
        tokens_per_sample=length,
        tokens_per_epoch=tokens_epoch,
        steps_total=steps,
        completions_bytes=tokens_epoch * BYTES_PER_COMPLETION_TOKEN,
        shards_bytes=tokens_epoch * BYTES_PER_SHARD_TOKEN,
        hidden_states_bytes_per_token=hidden_bytes,
        hidden_states_offline_bytes=hidden_bytes * tokens_epoch,
        link_bytes_per_s=link_rate,
        link_sockets=max(1, math.ceil(link_rate / socket)),
        checkpoint_bytes=checkpoint,
        checkpoints_bytes=checkpoint * (config.trainer.keep_checkpoints + 1),
        target_memory_bytes=shape.num_params * width,
        trainer_memory_bytes=params * 18 + head + config.links.max_bytes,
        drafter_params=params,
        generate_s=generate_s,
        train_s=train_s,
        target_tokens_per_s=target_rate,
        trainer_tokens_per_s=trainer_rate,
        targets_per_trainer=ratio,
        bottleneck=bottleneck,
        num_gpus=num_gpus,
        cost_usd=cost,
        warnings=[],
    )
    return result.model_copy(update={"warnings": _warnings(result, gpu, free_disk_bytes)})


def _captured_share(config: RunConfig, shape: TargetShape) -> float:
    ids = config.drafter.target_layer_ids
    last = max(ids) if ids else shape.num_hidden_layers - 3
    return min(1.0, (last + 1) / shape.num_hidden_layers)


def _sample_flops(
    config: RunConfig, shape: TargetShape, params: float, length: float, num_captured: int
) -> float:
    slots = config.trainer.num_anchors * config.drafter.block_size
    fusion = num_captured * shape.hidden_size**2
    kv_heads = config.drafter.num_key_value_heads or shape.num_key_value_heads
    head_dim = config.drafter.head_dim or shape.head_dim
    context = (
        fusion + config.drafter.num_hidden_layers * 2 * shape.hidden_size * kv_heads * head_dim
    )
    head = shape.vocab_size * shape.hidden_size
    return 6 * slots * (params - fusion) + 6 * length * context + 4 * slots * head


def _warnings(result: Forecast, gpu: Gpu | None, free_disk_bytes: float | None) -> list[str]:
    warnings = []
    if gpu is not None:
        for role, need in (
            ("target_forward", result.target_memory_bytes),
            ("drafter_trainer", result.trainer_memory_bytes),
        ):
            if need > gpu.memory_gb * 1e9:
                warnings.append(
                    f"{role} needs about {need / 1e9:.0f} GB for weights and states alone, more "
                    f"than the {gpu.memory_gb:.0f} GB of one {gpu.title}"
                )
    on_disk = result.completions_bytes + result.shards_bytes + result.checkpoints_bytes
    if free_disk_bytes is not None and on_disk > free_disk_bytes:
        warnings.append(
            f"the run writes about {on_disk / 1e9:.1f} GB but the data folder has "
            f"{free_disk_bytes / 1e9:.1f} GB free"
        )
    return warnings
