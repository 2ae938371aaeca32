"""Where the blocks of a training sample start.

A position is a candidate when it and the next one are supervised: the block then has at least one
token to predict. Anchors are drawn without replacement from a generator of the CPU that is seeded
by (run seed, epoch, sample id) alone. So a sample draws the same anchors whichever worker trains
it, however it is batched or packed, and after any restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from shared.errors import DataError


def anchor_candidates(loss_mask: Tensor) -> Tensor:
    """Positions p with loss_mask[p] and loss_mask[p + 1] in one sample; sorted int64 [C]."""
    supervised = loss_mask.bool()
    return (supervised[:-1] & supervised[1:]).nonzero().squeeze(1)


def anchor_seed(run_seed: int, epoch: int, sample_id: int | str) -> int:
    """A 63-bit seed that is the same in every process and on every machine."""
    text = f"anchors {run_seed} {epoch} {sample_id}".encode()
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def sample_anchors(
    loss_mask: Tensor, num_anchors: int, run_seed: int, epoch: int, sample_id: int | str
) -> Tensor:
    """Anchors of one sample: sorted int64 [min(num_anchors, candidates)], on the CPU.

    loss_mask: [S] of this sample alone (in a packed row: of one document). Raises DataError when
    the sample has no two consecutive supervised tokens; the quality gates keep such samples out.
    """
    candidates = anchor_candidates(loss_mask.cpu())
    count = candidates.numel()
    if count == 0:
        raise DataError(
            f"sample {sample_id} has no two consecutive supervised tokens, so no block can start "
            "in it; drop it from the data set (`dflash-mesh data check` lists such samples)"
        )
    generator = torch.Generator().manual_seed(anchor_seed(run_seed, epoch, sample_id))
    drawn = torch.randperm(count, generator=generator)[:num_anchors]
    return candidates[drawn].sort().values


def pad_anchors(rows: Sequence[Tensor], *, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Stack anchors of several rows: anchors int64 [B, N] and kept bool [B, N].

    N is the longest row rounded up to `multiple` (a fixed grid of shapes spares compiled kernels);
    unused entries are anchor 0, kept False.
    """
    longest = max(row.numel() for row in rows)
    width = -(-longest // multiple) * multiple
    anchors = torch.zeros(len(rows), width, dtype=torch.int64)
    kept = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, row in enumerate(rows):
        anchors[index, : row.numel()] = row
        kept[index, : row.numel()] = True
    return anchors, kept
