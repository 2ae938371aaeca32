"""What a batch says about the drafter, in sums that add up over batches and ranks.

Accuracy counts slots with weight, without decay. The simulated acceptance length takes each block's
true prefix: 1 + the mean over blocks of how many slots in a row, from the first, were predicted
right; a slot that does not count ends the prefix. It is comparable over time only on a fixed
held-out set with fixed anchors (`evaluation`), and it is not the acceptance length of real
decoding, which `speculative` measures.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossTerms:
    """Sums over the slots of one or more batches; all tensors, on the batch's device.

    loss_sum: float32 scalar, differentiable. weight_sum: what it is divided by (decay: weights;
    dpace: sequences). *_by_slot: float64 [block_size], entry 0 (the anchor) always zero.
    accepted_sum: drafts in true prefixes. num_blocks: blocks with a slot that counts.
    """

    loss_sum: Tensor
    weight_sum: Tensor
    correct_by_slot: Tensor
    weighted_by_slot: Tensor
    accepted_sum: Tensor
    num_blocks: Tensor

    def __add__(self, other: LossTerms) -> LossTerms:
        return LossTerms(*(getattr(self, n) + getattr(other, n) for n in _FIELDS))

    def detach(self) -> LossTerms:
        return LossTerms(*(getattr(self, name).detach() for name in _FIELDS))

    @property
    def num_correct(self) -> Tensor:
        return self.correct_by_slot.sum()

    @property
    def num_weighted(self) -> Tensor:
        return self.weighted_by_slot.sum()

    @property
    def loss(self) -> float:
        """Mean loss; nan when nothing counted."""
        return _ratio(self.loss_sum.detach(), self.weight_sum)

    @property
    def accuracy(self) -> float:
        """Share of weighted slots predicted right; nan when nothing counted."""
        return _ratio(self.num_correct, self.num_weighted)

    @property
    def accuracy_by_slot(self) -> list[float]:
        """Accuracy at distance 1, 2, ... from the anchor; nan where nothing counted."""
        pairs = zip(self.correct_by_slot[1:], self.weighted_by_slot[1:], strict=True)
        return [_ratio(right, count) for right, count in pairs]

    @property
    def simulated_acceptance_length(self) -> float:
        """1 + mean length of the true prefixes, in tokens; nan when there was no block."""
        return 1.0 + _ratio(self.accepted_sum, self.num_blocks)

    def to_vector(self) -> Tensor:
        """All sums as one float64 vector, to be added over ranks."""
        parts = (getattr(self, name).detach().double().reshape(-1) for name in _FIELDS)
        return torch.cat(list(parts))

    @classmethod
    def from_vector(cls, vector: Tensor) -> LossTerms:
        """Inverse of `to_vector`, without the gradient."""
        size = (vector.numel() - 4) // 2
        loss, weight, correct, weighted, accepted, blocks = vector.split([1, 1, size, size, 1, 1])
        scalars = [part.squeeze(0) for part in (loss, weight, accepted, blocks)]
        return cls(scalars[0], scalars[1], correct, weighted, scalars[2], scalars[3])


_FIELDS = (
    "loss_sum",
    "weight_sum",
    "correct_by_slot",
    "weighted_by_slot",
    "accepted_sum",
    "num_blocks",
)


def slot_statistics(
    loss_sum: Tensor, weight_sum: Tensor, correct: Tensor, valid: Tensor
) -> LossTerms:
    """Terms of a batch from each slot's prediction; correct and valid are bool [blocks, slots]."""
    right = correct & valid
    prefix = right[:, 1:].long().cumprod(dim=1)
    return LossTerms(
        loss_sum=loss_sum,
        weight_sum=weight_sum,
        correct_by_slot=right.sum(dim=0).double(),
        weighted_by_slot=valid.sum(dim=0).double(),
        accepted_sum=prefix.sum().double(),
        num_blocks=valid.any(dim=1).sum().double(),
    )


def _ratio(numerator: Tensor, denominator: Tensor) -> float:
    count = float(denominator)
    return float(numerator) / count if count else float("nan")
