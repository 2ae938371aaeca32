"""The attention mask as a flex_attention BlockMask, built in closed form from the anchors.

A BlockMask lists, for every tile of queries, the tiles of keys it must visit, apart those in which
every pair is visible. Asking torch to find the tiles evaluates the mask at all Q x K pairs, which
takes minutes at training shapes. Here the tiles follow from the two runs of keys that each query
sees (`layout`): Q x (K / tile) comparisons, a few milliseconds.

The mask function inside the tiles reads the same runs from tensors, so one compiled kernel serves
every batch of the same shape.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from shared.dflash.layout import BlockLayout, KeyIntervals

TILE = 128


def block_mask(
    layout: BlockLayout, window: int | None = None, *, is_causal: bool = True, tile: int = TILE
) -> BlockMask:
    """Sparse form of `mask.dense_mask`: BlockMask of shape [B, 1, N block_size, S + N block_size].

    tile: edge of a tile in tokens, for queries and keys.
    """
    runs = layout.intervals(window, is_causal=is_causal)
    visited, full = visible_tiles(runs, tile)
    partial_count, partial_index = _ordered(visited & ~full)
    full_count, full_index = _ordered(full)

    context_start, context_end = runs.context_start, runs.context_end
    own_start, own_end = runs.own_start, runs.own_end

    def visible(b: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        in_context = (k >= context_start[b, q]) & (k < context_end[b, q])
        in_block = (k >= own_start[b, q]) & (k < own_end[b, q])
        return in_context | in_block

    return BlockMask.from_kv_blocks(
        partial_count,
        partial_index,
        full_count,
        full_index,
        BLOCK_SIZE=tile,
        mask_mod=visible,
        seq_lengths=(layout.num_queries, runs.num_keys),
    )


def visible_tiles(runs: KeyIntervals, tile: int) -> tuple[Tensor, Tensor]:
    """Tiles with a visible pair, and tiles of visible pairs only; bool [B, 1, Q tiles, K tiles].

    The last tile of queries may be short; the queries it lacks see nothing, so it is never full.
    """
    num_queries = runs.own_start.shape[1]
    short = -num_queries % tile
    low = torch.arange(0, runs.num_keys, tile, device=runs.own_start.device, dtype=torch.int32)
    high = low + tile

    def by_tile(bound: Tensor) -> Tensor:
        return F.pad(bound, (0, short)).unflatten(1, (-1, tile))[..., None]

    visited = torch.zeros((), dtype=torch.bool, device=low.device)
    full = torch.zeros((), dtype=torch.bool, device=low.device)
    for start, end in (
        (by_tile(runs.context_start), by_tile(runs.context_end)),
        (by_tile(runs.own_start), by_tile(runs.own_end)),
    ):
        visited = visited | ((start < high) & (end > low) & (start < end)).any(dim=2)
        full = full | ((start <= low) & (end >= high)).all(dim=2)
    return visited[:, None], full[:, None]


def _ordered(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """How many tiles each row visits, and their numbers first in the row, ascending; int32."""
    count = tiles.sum(dim=-1, dtype=torch.int32)
    index = torch.argsort(tiles.to(torch.int8), dim=-1, descending=True, stable=True)
    return count, index.to(torch.int32).contiguous()
