"""The building blocks of the drafter: RMSNorm, rotary positions, attention, SwiGLU.

A Qwen3-style decoder layer whose attention reads two sources with the same projections: the fused
target context, which no layer changes, and the block tokens themselves. Module names follow the
tensor names of an exported drafter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shared.dflash.attention import Mask, attend
from shared.dflash.config import DrafterConfig

KeysValues = tuple[Tensor, Tensor]
Rotary = tuple[Tensor, Tensor]


class RMSNorm(nn.Module):
    """Scale by the inverse root mean square over the last axis, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(hidden.dtype)


def rotary_tables(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> Rotary:
    """Cosines and sines for `positions` [B, T]: two tensors [B, 1, T, head_dim].

    Angles are computed in float32. The second half of the last axis repeats the first, because the
    rotation pairs element i with element i + head_dim / 2.
    """
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    frequencies = theta ** (-exponents / head_dim)
    angles = positions[:, None, :, None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(heads: Tensor, rotary: Rotary) -> Tensor:
    """Apply rotary positions to `heads` [B, heads, T, head_dim]."""
    cos, sin = rotary
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query attention of block tokens over the context and the blocks."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def keys_values(self, hidden: Tensor, rotary: Rotary) -> KeysValues:
        """Rotated keys and values of `hidden` [B, T, H]: [B, key heads, T, head_dim] each."""
        keys = self.k_norm(self._heads(self.k_proj(hidden)))
        return rotate(keys, rotary), self._heads(self.v_proj(hidden))

    def forward(
        self, hidden: Tensor, rotary: Rotary, context: KeysValues, mask: Mask | None
    ) -> Tensor:
        """Block tokens [B, Q, H] attend to `context` and to one another as `mask` allows."""
        queries = rotate(self.q_norm(self._heads(self.q_proj(hidden))), rotary)
        own_keys, own_values = self.keys_values(hidden, rotary)
        keys = torch.cat((context[0], own_keys), dim=2)
        values = torch.cat((context[1], own_values), dim=2)
        mixed = attend(queries, keys, values, mask)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU feed-forward."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward, each with a residual connection."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def context_keys_values(self, context: Tensor, rotary: Rotary) -> KeysValues:
        """Keys and values of the fused context, which is not normalised again."""
        return self.self_attn.keys_values(context, rotary)

    def forward(
        self, hidden: Tensor, rotary: Rotary, context: KeysValues, mask: Mask | None
    ) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotary, context, mask)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))
