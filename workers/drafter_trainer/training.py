"""The drafter, its optimizer, and the steps: everything of the trainer that is torch.

    TrainingItem -> batch with anchors -> loss sums, gradient sums     (each micro-batch)
    -> divide by the step's weight sum, clip, AdamW, learning rate     (last micro-batch of a step)

Sums run over the whole step before anything is divided, so the split into micro-batches does not
change a step. Anchors depend on (run seed, epoch, sample id) alone. A step whose loss or gradient
is not finite is skipped: the weights stay and the learning-rate schedule does not advance, while
the plan goes on. All methods are synchronous and belong to one thread at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.target_models.untrained import untrained_drafter
from shared.config import RunConfig
from shared.config.loading import config_sha256
from shared.dflash.batch import collate
from shared.dflash.config import DrafterConfig
from shared.dflash.export import load_drafter, save_drafter
from shared.dflash.metrics import LossTerms
from shared.dflash.model import DFlashDraftModel
from shared.dflash.objective import Objective, training_terms
from shared.dflash.optimizer import DrafterOptimizer, learning_rate
from shared.dflash.target_head import TargetHead
from shared.errors import ConflictError, IntegrityError
from workers.drafter_trainer.checkpoints import Checkpoint
from workers.drafter_trainer.items import TrainingItem
from workers.drafter_trainer.watchdog import LossWatchdog

# On a GPU the number of blocks is rounded up to this, so that few shapes are compiled.
_CUDA_BLOCKS_MULTIPLE = 64


@dataclass(frozen=True)
class StepResult:
    """One step of the plan. loss is None when the step was skipped as not finite."""

    step: int
    steps_total: int
    epoch: int
    loss: float | None
    accuracy: float | None
    simulated_acceptance_length: float | None
    lr: float
    grad_norm: float | None
    num_tokens: int
    warning: str | None = None
    fatal: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """The state after a finished step, on memory of its own."""

    step: int
    model: DFlashDraftModel
    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def save_drafter(self, folder: Path) -> None:
        """Write the exported form, checked and read back."""
        save_drafter(folder, self.model)


class DrafterTraining:
    """A drafter in training. `step`, `epoch`, `next_micro_batch_id` are those of the last finished
    step; micro-batches of a step begun do not show in them."""

    def __init__(
        self, config: RunConfig, shape: DrafterConfig, target: Path, *, device: str = "auto"
    ) -> None:
        trainer = config.trainer
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        self.shape = shape
        self.config = config
        self.step = 0
        self.epoch = 0
        self.next_micro_batch_id = 0
        self.is_finished = False
        self.loss: float | None = None
        self._num_updates = 0
        self._terms: LossTerms | None = None
        self._num_tokens = 0
        self._expected_index = 0
        self._dtype: torch.dtype = getattr(torch, trainer.dtype)
        self._head = TargetHead.load(target, self._dtype, str(self.device))
        self._watchdog = LossWatchdog(trainer.divergence_factor, trainer.nonfinite_steps_limit)
        self._objective = Objective(trainer.objective, trainer.gamma, trainer.alpha)
        self._chunk_logits = trainer.loss_chunk_blocks * shape.block_size * shape.vocab_size
        self._adopt(untrained_drafter(shape, config.seed))

    def _adopt(self, model: DFlashDraftModel) -> None:
        trainer = self.config.trainer
        self.model = model.to(device=self.device, dtype=self._dtype).train()
        self.model.requires_grad_(True)
        self._optimizer = DrafterOptimizer(
            self.model,
            betas=(trainer.beta1, trainer.beta2),
            weight_decay=trainer.weight_decay,
            max_grad_norm=trainer.grad_clip,
        )

    def apply(self, item: TrainingItem) -> StepResult | None:
        """Take the next micro-batch of the plan; the step's result after its last one.

        Raises DataError for a sample in which no block can start.
        """
        micro_batch = item.micro_batch
        assert micro_batch.index_in_step == self._expected_index, "micro-batches come in plan order"
        samples = item.samples()
        if samples:
            batch = collate(
                samples,
                num_anchors=self.config.trainer.num_anchors,
                run_seed=self.config.seed,
                epoch=micro_batch.epoch,
                num_blocks_multiple=_CUDA_BLOCKS_MULTIPLE if self.device.type == "cuda" else 1,
                # The plan fixes the width, so that every run computes on the same shapes.
                length_multiple=micro_batch.padded_length,
            ).to(self.device, self._dtype)
            terms = training_terms(
                self.model,
                self._head,
                batch,
                self._objective,
                chunk_logits=self._chunk_logits,
            )
            terms.loss_sum.backward()
            terms = terms.detach()
            self._terms = terms if self._terms is None else self._terms + terms
        self._num_tokens += item.num_tokens
        self._expected_index += 1
        if self._expected_index < micro_batch.num_in_step:
            return None
        return self._finish_step(item)

    def _finish_step(self, item: TrainingItem) -> StepResult:
        micro_batch, trainer, terms = item.micro_batch, self.config.trainer, self._terms
        rate = learning_rate(
            min(self._num_updates, micro_batch.steps_total),
            micro_batch.steps_total,
            trainer.lr,
            trainer.warmup_ratio,
        )
        loss = math.nan if terms is None else terms.loss
        norm = math.nan
        if terms is not None and math.isfinite(loss):
            norm = self._optimizer.step(rate, terms.weight_sum)
        self._optimizer.zero_grad()
        warning = fatal = None
        is_finite = math.isfinite(loss) and math.isfinite(norm)
        if is_finite:
            self._num_updates += 1
            self.loss = loss
            warning = self._watchdog.observe(loss)
        else:
            fatal = self._watchdog.observe_nonfinite()
        num_tokens = self._num_tokens
        self._terms, self._num_tokens, self._expected_index = None, 0, 0
        self.step = micro_batch.step + 1
        self.epoch = micro_batch.epoch
        self.next_micro_batch_id = micro_batch.micro_batch_id + 1
        self.is_finished = micro_batch.last
        return StepResult(
            step=self.step,
            steps_total=micro_batch.steps_total,
            epoch=self.epoch,
            loss=loss if is_finite else None,
            accuracy=_finite(terms.accuracy) if terms is not None else None,
            simulated_acceptance_length=(
                _finite(terms.simulated_acceptance_length) if terms is not None else None
            ),
            lr=rate,
            grad_norm=norm if is_finite else None,
            num_tokens=num_tokens,
            warning=warning,
            fatal=fatal,
        )

    def snapshot(self) -> Snapshot:
        """A copy of the state on the CPU, as of the last finished step."""
        model = DFlashDraftModel(self.shape)
        model.load_state_dict(self.model.state_dict())
        state = {
            "step": self.step,
            "epoch": self.epoch,
            "next_micro_batch_id": self.next_micro_batch_id,
            "is_finished": self.is_finished,
            "num_updates": self._num_updates,
            "loss": self.loss,
            "watchdog": self._watchdog.to_dict(),
            "config_sha256": config_sha256(self.config),
        }
        tensors = {name: t.cpu().contiguous() for name, t in self._optimizer.flat_state().items()}
        return Snapshot(self.step, model.to(self._dtype), tensors, state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Stand where `checkpoint` stands.

        Raises ConflictError when it holds a drafter of another shape (naming the fields),
        DrafterError or IntegrityError when it cannot be read.
        """
        model = load_drafter(checkpoint.folder.drafter)
        differing = differing_fields(model.config, self.shape)
        if differing:
            raise ConflictError(
                f"checkpoint {checkpoint.folder.root.name} holds another drafter than the run's "
                f"configuration asks for: {'; '.join(differing)}. Start a new run for the new shape"
            )
        state = checkpoint.read_state()
        self._adopt(model)
        self._optimizer.load_flat_state(checkpoint.read_tensors())
        try:
            self._num_updates = state["num_updates"]
            self._watchdog.restore(state["watchdog"])
            self.step = state["step"]
            self.epoch = state["epoch"]
            self.next_micro_batch_id = state["next_micro_batch_id"]
            self.is_finished = state["is_finished"]
            self.loss = state["loss"]
        except KeyError as error:
            raise IntegrityError(
                f"checkpoint {checkpoint.folder.root} lacks {error} in its trainer state"
            ) from error


def differing_fields(found: DrafterConfig, wanted: DrafterConfig) -> list[str]:
    """`field: checkpoint X, configuration Y` for each field in which two drafters differ."""
    left, right = found.to_dict(), wanted.to_dict()
    return [
        f"{name}: checkpoint {left.get(name)!r}, configuration {right.get(name)!r}"
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
