"""Where the blocks of a batch stand, and which keys each of their tokens may see.

A batch has B rows of S context tokens and N blocks a row; the blocks' tokens follow one another in
one query sequence of Q = N block_size. Keys are the S context tokens, then the Q block tokens.
Every query sees at most two runs of keys, one in the context and one inside its own block:

    context   [max(document start, anchor + j - (window - 1)), anchor)
    own block all of it, or its tokens 0..j in a causal sliding layer

`BlockLayout.intervals` states these two runs; the dense mask (`mask`) and the sparse one
(`block_mask`) are both built from them, so they cannot disagree. An unused block has two empty
runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KeyIntervals:
    """Half-open runs of visible keys, one pair a query; int32 [B, Q] each."""

    context_start: Tensor
    context_end: Tensor
    own_start: Tensor
    own_end: Tensor
    num_keys: int


@dataclass(frozen=True)
class BlockLayout:
    """Anchors of a batch and what follows from them.

    anchors: int64 [B, N], positions in the row. kept: bool [B, N], False for unused blocks.
    document_starts: int64 [B, S], for each position the first position of its document.
    """

    anchors: Tensor
    kept: Tensor
    document_starts: Tensor
    block_size: int

    @classmethod
    def of(
        cls,
        anchors: Tensor,
        kept: Tensor,
        *,
        seq_len: int,
        block_size: int,
        document_ids: Tensor | None = None,
    ) -> BlockLayout:
        """Layout of `anchors` [B, N] in rows of `seq_len` tokens.

        document_ids: int64 [B, S], constant over each packed document (a document is one run of
        positions); None when every row is one document.
        """
        assert anchors.shape == kept.shape and anchors.dim() == 2, "anchors and kept are [B, N]"
        batch, device = anchors.shape[0], anchors.device
        if document_ids is None:
            starts = torch.zeros(batch, seq_len, dtype=torch.int64, device=device)
        else:
            starts = document_starts(document_ids)
        return cls(anchors, kept.bool(), starts, block_size)

    @property
    def seq_len(self) -> int:
        return self.document_starts.shape[1]

    @property
    def num_queries(self) -> int:
        return self.anchors.shape[1] * self.block_size

    @property
    def anchor_starts(self) -> Tensor:
        """First position of each anchor's document, int64 [B, N]."""
        return self.document_starts.gather(1, self.anchors)

    @property
    def slots(self) -> Tensor:
        """Position in the row of every block token, int64 [B, N, block_size]; may pass the end."""
        offsets = torch.arange(self.block_size, device=self.anchors.device)
        return self.anchors[:, :, None] + offsets

    def context_positions(self) -> Tensor:
        """Rotary positions of the context, int64 [B, S], counted from each document's start."""
        return torch.arange(self.seq_len, device=self.anchors.device) - self.document_starts

    def block_positions(self) -> Tensor:
        """Rotary positions of the block tokens, int64 [B, N block_size]."""
        return (self.slots - self.anchor_starts[:, :, None]).flatten(1)

    def intervals(self, window: int | None, *, is_causal: bool = True) -> KeyIntervals:
        """Visible keys in a layer of `window` tokens (None: full attention).

        is_causal: whether a sliding layer sees its own block causally; without effect on full ones.
        """
        seq_len, size = self.seq_len, self.block_size
        device = self.anchors.device
        shape = (*self.anchors.shape, size)
        offsets = torch.arange(size, device=device)
        start = self.anchor_starts[:, :, None].expand(shape)
        if window is not None:
            start = torch.maximum(start, self.slots - (window - 1))
        end = self.anchors[:, :, None].expand(shape)
        own = seq_len + size * torch.arange(shape[1], device=device)[None, :, None]
        own_start = own.expand(shape)
        own_size = offsets + 1 if window is not None and is_causal else size
        own_end = own_start + own_size
        used = self.kept[:, :, None]

        def run(bound: Tensor) -> Tensor:
            return torch.where(used, bound, 0).flatten(1).to(torch.int32)

        return KeyIntervals(
            run(start), run(end), run(own_start), run(own_end), seq_len + self.num_queries
        )


def document_starts(document_ids: Tensor) -> Tensor:
    """For each position the first position of its document; int64 [B, S] from ids [B, S]."""
    positions = torch.arange(document_ids.shape[1], device=document_ids.device)
    changes = torch.ones_like(document_ids, dtype=torch.bool)
    changes[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return torch.where(changes, positions, 0).cummax(dim=1).values
