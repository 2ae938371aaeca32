"""Cross entropy of block tokens through a frozen lm_head, chunk by chunk.

At a vocabulary of 248,320 the logits of all blocks would take gigabytes, and autograd would keep
them until the backward pass. Since the lm_head is frozen, the only gradient needed is that of the
hidden states, which is known as soon as the logits of a chunk are: so each chunk computes logits,
loss and that gradient, and is forgotten. Only slots with weight pass through the lm_head. A chunk
holds whole blocks, because a `dpace` weight depends on the probabilities of its whole block.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_LOGITS = 1 << 27


@dataclass(frozen=True)
class SlotResults:
    """What the loss knows of each slot: [blocks, block_size], zero where nothing counted."""

    cross_entropy: Tensor
    correct: Tensor


def weighted_cross_entropy(
    hidden: Tensor,
    lm_head: Tensor,
    labels: Tensor,
    weights: Tensor,
    *,
    dpace_alpha: float | None = None,
    chunk_logits: int = CHUNK_LOGITS,
) -> tuple[Tensor, SlotResults]:
    """Sum over slots of weight x cross entropy, and the results of each slot.

    hidden: [blocks, block_size, H]. lm_head: [V, H], frozen. labels: int64 [blocks, block_size].
    weights: float32 [blocks, block_size], zero for slots that do not count. dpace_alpha: when
    given, each weight is multiplied by the block's dpace factor (`dpace_factors`). chunk_logits:
    logits that may exist at once; a single block is always taken whole.

    The sum is a float32 scalar whose gradient reaches `hidden` only.
    """
    total, cross_entropy, correct = _ChunkedLoss.apply(
        hidden, lm_head, labels, weights, dpace_alpha, chunk_logits
    )
    return total, SlotResults(cross_entropy, correct)


def dpace_factors(probability: Tensor, valid: Tensor, alpha: float) -> Tensor:
    """Weight of each slot by how far the drafts before and after it are likely to be accepted.

    With s = (1 - alpha) q + alpha for label probabilities q (1 where not valid) and P the running
    product of s along the block, slot j weighs the sum of P over the valid slots from j to the end.
    probability float32 and valid bool, both [blocks, block_size].
    """
    survival = torch.where(valid, (1 - alpha) * probability + alpha, 1.0)
    products = survival.cumprod(dim=-1) * valid
    return products.flip(-1).cumsum(dim=-1).flip(-1) * valid


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        lm_head: Tensor,
        labels: Tensor,
        weights: Tensor,
        dpace_alpha: float | None,
        chunk_logits: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        valid = weights > 0
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        cross_entropy = torch.zeros_like(weights)
        correct = torch.zeros_like(valid)
        gradient = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        size = labels.shape[1]
        step = max(1, chunk_logits // (size * lm_head.shape[0]))
        where = valid.flatten().nonzero().squeeze(1)
        ends = valid.sum(dim=1).cumsum(0)[step - 1 :: step].tolist()
        bounds = [0, *ends] if ends and ends[-1] == where.numel() else [0, *ends, where.numel()]
        for number, (low, high) in enumerate(itertools.pairwise(bounds)):
            if low == high:
                continue
            slots = where[low:high]
            blocks = slice(number * step, (number + 1) * step)
            picked = hidden.flatten(0, 1)[slots]
            logits = (picked @ lm_head.T).float()
            target = labels.flatten()[slots, None]
            correct.view(-1)[slots] = logits.argmax(dim=-1) == target.squeeze(1)
            log_total = logits.logsumexp(dim=-1, keepdim=True)
            losses = (log_total - logits.gather(1, target)).squeeze(1)
            cross_entropy.view(-1)[slots] = losses
            scale = weights[blocks]
            if dpace_alpha is not None:
                likely = torch.exp(-cross_entropy[blocks])
                scale = scale * dpace_factors(likely, valid[blocks], dpace_alpha)
            weight = scale.flatten()[slots - blocks.start * size]
            total += (weight * losses).sum()
            if gradient is not None:
                slope = logits.sub_(log_total).exp_().mul_(weight[:, None])
                slope.scatter_add_(1, target, -weight[:, None])
                gradient.view(-1, gradient.shape[-1])[slots] = slope.to(lm_head.dtype) @ lm_head
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(cross_entropy, correct)
        return total, cross_entropy, correct

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor, *_unused: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        scaled = None if gradient is None else gradient * grad_total.to(gradient.dtype)
        return scaled, None, None, None, None, None
