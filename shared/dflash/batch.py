"""What one drafter step consumes, and how it is put together from samples.

A sample arrives with its tokens, its loss mask and the target's hidden states, without padding. A
row of a batch holds one sample, or several packed one after another; anchors are drawn for each
sample by itself, so neither padding nor packing changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shared.dflash.anchors import pad_anchors, sample_anchors
from shared.dflash.layout import BlockLayout


@dataclass(frozen=True)
class DrafterSample:
    """One sample. input_ids int64 [S], loss_mask bool [S], target_hidden_states [S, K H]."""

    sample_id: int | str
    input_ids: Tensor
    loss_mask: Tensor
    target_hidden_states: Tensor


@dataclass(frozen=True)
class DrafterBatch:
    """Right-padded rows with their anchors.

    input_ids int64 [B, S]; loss_mask bool [B, S], False in padding; target_hidden_states
    [B, S, K H], zero in padding; anchors int64 [B, N]; kept bool [B, N]; document_ids int64 [B, S]
    when rows are packed (-1 in padding), else None.
    """

    input_ids: Tensor
    loss_mask: Tensor
    target_hidden_states: Tensor
    anchors: Tensor
    kept: Tensor
    document_ids: Tensor | None = None

    def layout(self, block_size: int) -> BlockLayout:
        return BlockLayout.of(
            self.anchors,
            self.kept,
            seq_len=self.input_ids.shape[1],
            block_size=block_size,
            document_ids=self.document_ids,
        )

    @property
    def num_sequences(self) -> int:
        """Samples in the batch: rows, or documents where rows are packed."""
        if self.document_ids is None:
            return self.input_ids.shape[0]
        return sum(int(row[row >= 0].unique().numel()) for row in self.document_ids)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> DrafterBatch:
        """On `device`, hidden states in `dtype`; copies overlap where the source is page-locked."""
        moved = {
            name: value.to(device, non_blocking=True)
            for name in ("input_ids", "loss_mask", "anchors", "kept", "document_ids")
            if (value := getattr(self, name)) is not None
        }
        states = self.target_hidden_states.to(device, dtype, non_blocking=True)
        return replace(self, target_hidden_states=states, **moved)


def collate(
    samples: Sequence[DrafterSample],
    *,
    num_anchors: int,
    run_seed: int,
    epoch: int,
    num_blocks_multiple: int = 1,
    length_multiple: int = 1,
) -> DrafterBatch:
    """One row a sample.

    *_multiple: round N and S up. On a GPU this keeps the number of distinct shapes small, and with
    it the number of compiled kernels; 16 and 128 do well.
    """
    return collate_packed(
        [[sample] for sample in samples],
        num_anchors=num_anchors,
        run_seed=run_seed,
        epoch=epoch,
        num_blocks_multiple=num_blocks_multiple,
        length_multiple=length_multiple,
    )


def collate_packed(
    rows: Sequence[Sequence[DrafterSample]],
    *,
    num_anchors: int,
    run_seed: int,
    epoch: int,
    num_blocks_multiple: int = 1,
    length_multiple: int = 1,
) -> DrafterBatch:
    """Several samples a row, one after another; num_anchors counts for each sample.

    document_ids is left out when no row holds more than one sample. Raises DataError from
    `sample_anchors`.
    """
    longest = max(sum(sample.input_ids.numel() for sample in row) for row in rows)
    width = -(-longest // length_multiple) * length_multiple
    first = rows[0][0]
    input_ids = torch.zeros(len(rows), width, dtype=torch.int64)
    loss_mask = torch.zeros(len(rows), width, dtype=torch.bool)
    document_ids = torch.full((len(rows), width), -1, dtype=torch.int64)
    states = first.target_hidden_states.new_zeros(
        len(rows), width, first.target_hidden_states.shape[-1]
    )
    anchors = []
    for index, row in enumerate(rows):
        start, drawn = 0, []
        for number, sample in enumerate(row):
            end = start + sample.input_ids.numel()
            input_ids[index, start:end] = sample.input_ids
            loss_mask[index, start:end] = sample.loss_mask.bool()
            document_ids[index, start:end] = number
            states[index, start:end] = sample.target_hidden_states
            picked = sample_anchors(
                sample.loss_mask, num_anchors, run_seed, epoch, sample.sample_id
            )
            drawn.append(picked + start)
            start = end
        anchors.append(torch.cat(drawn))
    padded, kept = pad_anchors(anchors, multiple=num_blocks_multiple)
    packed = any(len(row) > 1 for row in rows)
    return DrafterBatch(
        input_ids, loss_mask, states, padded, kept, document_ids if packed else None
    )
