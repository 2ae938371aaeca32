"""What a batcher derives from the run's configuration and the target's folder, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from services.builtin import target_folder
from services.data.dataset import DatasetInfo, Fingerprint
from services.data.tokenizer_files import TokenizerFacts, read_tokenizer_facts
from services.target_models.drafter_shape import drafter_config
from services.target_models.mask_token import mask_token_id_of
from shared.config import RunConfig
from shared.errors import TargetModelError
from shared.gates import Gatekeeper, GateTokens
from shared.layout import RunFolder
from shared.states import Stage
from workers.batcher.builder import DatasetBuilder, load_info
from workers.batcher.plan import BatchPlan, PlanRules

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class BatcherSetup:
    """Read once at the start. `bytes_per_token` is the size of one token's hidden states."""

    config: RunConfig
    facts: TokenizerFacts
    mask_token_id: int | None
    bytes_per_token: int

    @classmethod
    def read(cls, config: RunConfig) -> BatcherSetup:
        """Raises TargetModelError, DrafterError."""
        folder = target_folder(config.target.path)
        facts = read_tokenizer_facts(folder)
        if Stage.TRAIN in config.stages:
            drafter = drafter_config(config, folder)
            width = drafter.target_hidden_size
            return cls(
                config, facts, drafter.mask_token_id, width * _DTYPE_BYTES[config.target.dtype]
            )
        try:
            mask_token_id = mask_token_id_of(folder, config.drafter.mask_token_id)
        except TargetModelError:
            mask_token_id = None  # nothing is trained here, so no token is reserved
        return cls(config, facts, mask_token_id, bytes_per_token=1)

    @property
    def fingerprint(self) -> Fingerprint:
        batcher = self.config.batcher
        return Fingerprint(
            tokenizer_sha256=self.facts.sha256,
            template_sha256=self.facts.template_sha256,
            mask_token_id=self.mask_token_id,
            max_length=batcher.max_length,
            segment_samples=batcher.segment_samples,
            seed=self.config.seed,
            gates=self.config.gates.model_dump(mode="json"),
        )

    def load_info(self, folder: RunFolder) -> DatasetInfo | None:
        """What an earlier incarnation sealed in this run."""
        return load_info(folder, self.fingerprint)

    def keeper(self, num_prompts: int) -> Gatekeeper:
        """Gates in their initial state."""
        tokens = GateTokens(
            mask_token_id=self.mask_token_id,
            think_open_id=self.facts.think_open_id,
            think_close_id=self.facts.think_close_id,
            special_texts=self.facts.special_texts,
        )
        return Gatekeeper(self.config.gates, tokens, num_prompts=num_prompts)

    def builder(self, folder: RunFolder, num_prompts: int) -> DatasetBuilder:
        """A builder that stands at the beginning of the log."""
        info = self.load_info(folder)
        if info is None:
            info = DatasetInfo(self.fingerprint, num_prompts=num_prompts)
        return DatasetBuilder(folder, info, self.keeper(num_prompts))

    def plan(self, expected_samples: int | None) -> BatchPlan:
        """An empty plan under the run's rules; None for a data set that is known as a whole."""
        config = self.config
        return BatchPlan(
            PlanRules(
                seed=config.seed,
                micro_batch_size=config.batcher.micro_batch_size,
                micro_batches_per_step=config.train.micro_batches_per_step,
                num_length_buckets=config.batcher.num_length_buckets,
                num_epochs=config.train.num_epochs,
                segment_samples=config.batcher.segment_samples,
                expected_samples=expected_samples,
                max_steps=config.train.max_steps,
            )
        )
