"""The attention mask of a batch of blocks, as a dense boolean tensor.

Used on the CPU, where attention over a few hundred keys is cheapest with the mask spelled out, and
as the reference that the sparse mask is compared with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shared.dflash.layout import BlockLayout


def dense_mask(layout: BlockLayout, window: int | None = None, *, is_causal: bool = True) -> Tensor:
    """Which key every query sees: bool [B, 1, N block_size, S + N block_size].

    window: width of a sliding layer in tokens, None for a full one. is_causal: whether a sliding
    layer sees its own block causally. Rows of unused blocks are all False.
    """
    runs = layout.intervals(window, is_causal=is_causal)
    keys = torch.arange(runs.num_keys, device=layout.anchors.device, dtype=torch.int32)
    in_context = (keys >= runs.context_start[..., None]) & (keys < runs.context_end[..., None])
    in_block = (keys >= runs.own_start[..., None]) & (keys < runs.own_end[..., None])
    return (in_context | in_block)[:, None]
