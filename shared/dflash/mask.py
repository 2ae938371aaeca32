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


def decoding_mask(
    context_len: int,
    block_size: int,
    window: int | None,
    *,
    is_causal: bool = True,
    device: torch.device | str = "cpu",
) -> Tensor | None:
    """Mask of one block right after its context: bool [1, 1, block_size, context_len + block_size].

    The same rule as `dense_mask` for an anchor at `context_len` with nothing in the context at or
    after it, as in decoding. None for a full layer: there every key is visible.
    """
    if window is None:
        return None
    slot = torch.arange(block_size, device=device)[:, None]
    context = torch.arange(context_len, device=device)
    in_context = context >= context_len + slot - (window - 1)
    own = torch.ones(block_size, block_size, dtype=torch.bool, device=device)
    return torch.cat((in_context, own.tril() if is_causal else own), dim=1)[None, None]
