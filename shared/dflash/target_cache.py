"""The target's key-value cache between decoding steps.

Plain attention layers keep their keys and values in buffers that double when full, so a step costs
one write instead of a copy of everything so far, and taking back rejected drafts costs nothing.
Layers with a recurrent state (Qwen3.5 hybrids) cannot forget a token: for them the loop takes a
copy before each verification and replays the accepted tokens from it.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

_FIRST_CAPACITY = 64


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, [B, key heads, T, head_dim], in buffers with room to grow."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()
        self._length = 0
        self._key_buffer: Tensor | None = None
        self._value_buffer: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append; returns all keys and values so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self._length = self._length, self._length + key_states.shape[2]
        self._key_buffer = _room(self._key_buffer, key_states, start, self._length)
        self._value_buffer = _room(self._value_buffer, value_states, start, self._length)
        self._key_buffer[:, :, start : self._length] = key_states
        self._value_buffer[:, :, start : self._length] = value_states
        self._expose()
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self._length

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens; takes minus their number, as elsewhere in transformers."""
        assert -self._length <= tokens_to_remove <= 0, "crop takes minus the number of tokens"
        self._length += tokens_to_remove
        self._expose()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only these rows of the batch."""
        if self._key_buffer is not None and self._value_buffer is not None:
            self._key_buffer = self._key_buffer[indices]
            self._value_buffer = self._value_buffer[indices]
            self._expose()

    def _expose(self) -> None:
        if self._key_buffer is not None and self._value_buffer is not None:
            self.keys = self._key_buffer[:, :, : self._length]
            self.values = self._value_buffer[:, :, : self._length]


def _room(buffer: Tensor | None, states: Tensor, used: int, needed: int) -> Tensor:
    """`buffer` with space for `needed` tokens, its first `used` kept."""
    if buffer is not None and buffer.shape[2] >= needed:
        return buffer
    capacity = max(_FIRST_CAPACITY, needed, 2 * used)
    grown = states.new_empty(*states.shape[:2], capacity, states.shape[3])
    if buffer is not None:
        grown[:, :, :used] = buffer[:, :, :used]
    return grown


class TargetCache:
    """What the target keeps of the tokens fed so far; `length` of them."""

    def __init__(self, config: Any, num_layers: int) -> None:
        kinds = set(getattr(config, "layer_types", None) or ())
        self.croppable = kinds <= {"full_attention", "sliding_attention"}
        self.layers: Cache = (
            # Sliding layers keep everything too: their mask hides what lies outside the window.
            Cache(layers=[GrowingLayer() for _ in range(num_layers)])
            if self.croppable
            else DynamicCache(config=config)
        )
        self.length = 0

    def copy(self) -> TargetCache:
        """An independent copy, for layers that cannot take tokens back."""
        return copy.deepcopy(self)

    def crop(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        assert self.croppable and length <= self.length, "only a croppable cache takes tokens back"
        for layer in self.layers.layers:
            assert isinstance(layer, GrowingLayer)
            layer.crop(length - self.length)
        self.length = length

    def select_rows(self, rows: Tensor) -> None:
        """Keep these rows of the batch, int64 [B'] on the cache's device."""
        layers: list[Any] = self.layers.layers
        for layer in layers:
            if isinstance(layer, DynamicLayer):
                layer.batch_select_indices(rows)
            else:
                layer.reorder_cache(rows)
