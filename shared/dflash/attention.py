"""Attention itself: the backend follows the kind of mask, and the kind of mask follows the device.

On CUDA the mask is a `BlockMask` and attention runs in a compiled flex_attention kernel, which
skips the empty tiles. Elsewhere the mask is a boolean tensor and attention is torch's fused one. A
query that sees no key gets zeros from both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from shared.dflash.block_mask import block_mask
from shared.dflash.config import DrafterConfig
from shared.dflash.layout import BlockLayout
from shared.dflash.mask import dense_mask

Mask = Tensor | BlockMask
LayerMasks = dict[int | None, Mask]

_KERNEL_VARIANTS = 64


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask | None) -> Tensor:
    """Grouped-query attention.

    queries [B, heads, Q, D]; keys and values [B, key heads, K, D]; mask as `layer_masks` makes it,
    or None when every query sees every key. Returns [B, heads, Q, D].
    """
    if isinstance(mask, BlockMask):
        return _compiled_flex()(queries, keys, values, block_mask=mask, enable_gqa=True)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)


def layer_masks(config: DrafterConfig, layout: BlockLayout) -> LayerMasks:
    """One mask for each distinct window of the drafter's layers, keyed by window."""
    build: Callable[..., Mask] = block_mask if layout.anchors.is_cuda else dense_mask
    windows = {config.window_of(layer) for layer in range(config.num_hidden_layers)}
    return {window: build(layout, window, is_causal=config.is_causal) for window in windows}


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    # Each new combination of rows, lengths and heads may compile once more until the sizes count as
    # dynamic. Past the limit torch would fall back to a slow path without failing; fullgraph fails.
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, _KERNEL_VARIANTS)
    return torch.compile(flex_attention, fullgraph=True)
