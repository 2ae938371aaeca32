"""Spell a BlockMask out as a dense tensor, so that it can be compared with the dense mask."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask


def materialise(mask: BlockMask) -> Tensor:
    """bool [B, 1, Q, K] as the attention kernel reads it: tiles listed as full count without a look
    at the mask function, tiles listed as partial are masked by it, all others are skipped.
    """
    batch, heads, num_queries, num_keys = mask.shape
    rows, columns = mask.BLOCK_SIZE
    elementwise = create_mask(
        mask.mask_mod, batch, heads, num_queries, num_keys, device=str(mask.kv_indices.device)
    )
    dense = torch.zeros_like(elementwise)
    listed = (
        (mask.kv_num_blocks, mask.kv_indices, False),
        (mask.full_kv_num_blocks, mask.full_kv_indices, True),
    )
    for counts, indices, full in listed:
        for b in range(batch):
            for row in range(counts.shape[2]):
                for tile in indices[b, 0, row, : int(counts[b, 0, row])].tolist():
                    q = slice(row * rows, (row + 1) * rows)
                    k = slice(tile * columns, (tile + 1) * columns)
                    dense[b, 0, q, k] = True if full else elementwise[b, 0, q, k]
    return dense
