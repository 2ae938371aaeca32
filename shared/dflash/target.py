"""The frozen target model: hidden states for training, cached steps for decoding.

Any transformers decoder of the usual shape works (`model.model.layers`: Llama, Qwen3, Qwen3.5
hybrids). The decoder is never changed; the passes run on shallow copies of it that share all
weights: one cut off above the highest captured layer, without the final norm, and a whole one.
Captured layers are wrapped in a tap that notes their output.

Not safe for use by several threads at once: a tap notes one pass at a time.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig

from shared.dflash.config import DTYPES
from shared.dflash.target_cache import TargetCache
from shared.dflash.target_head import TargetHead
from shared.dflash.target_shape import TargetShape
from shared.errors import TargetModelError


@dataclass(frozen=True)
class TargetStep:
    """last_hidden [B, T, H], after the final norm; captured [B, T, K H] or None."""

    last_hidden: Tensor
    captured: Tensor | None


class TargetModel:
    """A causal language model, frozen, in evaluation mode.

    `before_step` is called before every decoding pass; what it raises ends the decoding.
    """

    def __init__(self, model: Any) -> None:
        decoder = getattr(model, "model", None)
        decoder = getattr(decoder, "language_model", decoder)
        if decoder is None or not hasattr(decoder, "layers"):
            raise TargetModelError(
                f"{type(model).__name__} has no decoder layers under .model.layers; the target "
                "must be a causal language model of the Llama or Qwen families"
            )
        model.eval().requires_grad_(False)
        self._model, self._decoder = model, decoder
        self.config = model.config.get_text_config()
        self.shape = TargetShape.of(self.config)
        self.head = TargetHead(decoder.embed_tokens.weight, model.lm_head.weight)
        self.eos_ids = _eos_ids(model)
        self.before_step: Callable[[], None] | None = None
        self._passes: dict[tuple[tuple[int, ...], bool], tuple[nn.Module, list[Tensor]]] = {}
        parameters = inspect.signature(decoder.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @classmethod
    def load(
        cls,
        folder: Path | str,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
    ) -> TargetModel:
        """Load a local folder in the Hugging Face layout; nothing is downloaded.

        Raises TargetModelError when the folder or its config.json is missing, when transformers
        does not know the architecture, or when weights are missing or misshapen.
        """
        folder = Path(folder)
        TargetShape.read(folder)
        if isinstance(dtype, str):
            if dtype not in DTYPES:
                raise ValueError(f"dtype is {dtype!r}; known are {', '.join(DTYPES)}")
            dtype = getattr(torch, dtype)
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, local_files_only=True, output_loading_info=True
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise TargetModelError(f"cannot load the target in {folder}: {error}") from error
        model, info = loaded
        absent = sorted(info["missing_keys"])
        misshapen = sorted(str(one[0]) for one in info["mismatched_keys"])
        if absent or misshapen:
            raise TargetModelError(
                f"the target in {folder} is incomplete: missing tensors {absent[:5]}, misshapen "
                f"{misshapen[:5]} ({len(absent) + len(misshapen)} in all)"
            )
        return cls(model.to(device))

    @property
    def num_layers(self) -> int:
        return self.shape.num_hidden_layers

    @property
    def device(self) -> torch.device:
        return self.head.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.embedding.dtype

    @property
    def embed_tokens(self) -> nn.Module:
        return self._decoder.embed_tokens

    @property
    def lm_head(self) -> nn.Module:
        return self._model.lm_head

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence, prompt and answer together."""
        return self.shape.max_position_embeddings

    def compile_layers(self) -> None:
        """Compile each decoder layer, for speed on a GPU; the first pass then takes a while."""
        for layer in self._decoder.layers:
            layer.compile()

    @torch.no_grad()  # not inference mode: a drafter may train on the result
    def hidden_states(
        self,
        input_ids: Tensor,
        lengths: Sequence[int] | None = None,
        target_layer_ids: Sequence[int] = (),
    ) -> Tensor:
        """Outputs of the captured layers, concatenated: [B, S, K H] in the target's dtype.

        input_ids: int64 [B, S], right-padded with any token. lengths: tokens of each row; the rest
        of a row comes back as zeros. target_layer_ids: 0-based, in the order of concatenation. The
        pass ends at the highest of them. Raises ValueError for ids outside the target.
        """
        decoder, taps = self._pass(tuple(target_layer_ids), whole=False)
        decoder(input_ids=input_ids.to(self.device), use_cache=False)
        states = _gather(taps)
        for row, length in enumerate(lengths or ()):
            states[row, length:] = 0
        return states

    def new_cache(self) -> TargetCache:
        return TargetCache(self.config, self.num_layers)

    @torch.inference_mode()
    def step(
        self,
        input_ids: Tensor,
        cache: TargetCache,
        *,
        target_layer_ids: Sequence[int] = (),
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> TargetStep:
        """Feed int64 [B, T] tokens after those in `cache`, which grows by T.

        attention_mask: int64 [B, cache length + T] with 0 for padding, and position_ids int64 [B,
        T]: both only for batches of unequal length.
        """
        if self.before_step is not None:
            self.before_step()
        decoder, taps = self._pass(tuple(target_layer_ids), whole=True)
        output = decoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=True,
            **{self._cache_argument: cache.layers},
        )
        cache.length += input_ids.shape[1]
        captured = _gather(taps) if target_layer_ids else None
        return TargetStep(output.last_hidden_state, captured)

    def _pass(self, ids: tuple[int, ...], *, whole: bool) -> tuple[nn.Module, list[Tensor]]:
        """A copy of the decoder that notes the outputs of layers `ids`, and the notes."""
        found = self._passes.get((ids, whole))
        if found is not None:
            found[1][:] = [_NOTHING] * len(ids)
            return found
        outside = [one for one in ids if not 0 <= one < self.num_layers]
        if outside or not (ids or whole):
            raise ValueError(
                f"target_layer_ids {list(ids)} must name layers between 0 and {self.num_layers - 1}"
            )
        notes = [_NOTHING] * len(ids)
        layers = list(self._decoder.layers) if whole else list(self._decoder.layers)[: max(ids) + 1]
        for place, layer in enumerate(ids):
            layers[layer] = _Tap(layers[layer], notes, place)
        decoder = copy.copy(self._decoder)
        decoder._modules = dict(self._decoder._modules)
        decoder.layers = nn.ModuleList(layers)
        if not whole:
            decoder.norm = nn.Identity()
        self._passes[ids, whole] = decoder, notes
        return decoder, notes


_NOTHING = torch.empty(0)


class _Tap(nn.Module):
    """Runs a decoder layer and notes its output; in all else it looks like the layer."""

    def __init__(self, layer: nn.Module, notes: list[Tensor], place: int) -> None:
        super().__init__()
        self.layer = layer
        self._notes, self._place = notes, place

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.layer(*args, **kwargs)
        self._notes[self._place] = output[0] if isinstance(output, tuple) else output
        return output


def _gather(notes: list[Tensor]) -> Tensor:
    states = torch.cat(notes, dim=-1)
    notes[:] = [_NOTHING] * len(notes)
    return states


def _eos_ids(model: Any) -> frozenset[int]:
    """End-of-text ids: of the generation settings, else of the configuration."""
    generation: GenerationConfig | None = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = getattr(model.config.get_text_config(), "eos_token_id", None)
    if ids is None:
        return frozenset()
    return frozenset([ids] if isinstance(ids, int) else ids)
