"""The shape of a drafter.

`DrafterConfig` is what every other module of this package takes. It is checked on construction, so
the code that uses it need not check again. Its JSON form is in `config_json`, its derivation from a
target in `target_shape`. No torch here: the control plane and the planner read configurations too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.dflash.config_json import FULL, SLIDING, parse_fields, to_fields
from shared.dflash.layer_ids import default_target_layer_ids, layer_id_problems
from shared.dflash.target_shape import TargetShape
from shared.errors import DrafterError

__all__ = ["DTYPES", "FULL", "SLIDING", "DrafterConfig", "default_target_layer_ids"]

DTYPES = ("float32", "bfloat16", "float16")
_WHOLE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "num_target_layers",
)


@dataclass(frozen=True)
class DrafterConfig:
    """Dimensions and conventions of one drafter; DrafterError names everything wrong with them.

    layer_types: "full_attention" or "sliding_attention" for each drafter layer (default: all full).
    sliding_window: width in tokens, or None; needed when a layer slides.
    is_causal: whether a sliding layer sees its own block causally; full layers never do.
    num_target_layers: decoder layers of the target; target_layer_ids are 0-based among them.
    block_size: tokens of a block, the anchor included.
    dtype: of the stored weights: "float32", "bfloat16" or "float16".
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_target_layers: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    max_position_embeddings: int = 32_768
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    is_causal: bool = True
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "target_layer_ids", tuple(self.target_layer_ids))
        problems = list(self._number_problems())
        if not problems:
            types = tuple(self.layer_types) or (FULL,) * self.num_hidden_layers
            object.__setattr__(self, "layer_types", types)
            problems = list(self._problems())
        if problems:
            raise DrafterError("unusable drafter configuration: " + "; ".join(problems))

    def _number_problems(self) -> Iterable[str]:
        for name in _WHOLE:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                yield f"{name} is {value!r}; it must be a whole number of at least 1"
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                yield f"{name} is {value!r}; it must be a positive number"
        size = self.block_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 2:
            yield f"block_size is {size!r}; the anchor and one drafted token make it at least 2"
        if isinstance(self.mask_token_id, bool) or not isinstance(self.mask_token_id, int):
            yield f"mask_token_id is {self.mask_token_id!r}; it must be a token id"

    def _problems(self) -> Iterable[str]:
        if self.num_attention_heads % self.num_key_value_heads:
            yield (
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            yield f"head_dim {self.head_dim} is odd; rotary positions need an even one"
        if not 0 <= self.mask_token_id < self.vocab_size:
            yield f"mask_token_id {self.mask_token_id} lies outside vocab_size {self.vocab_size}"
        yield from layer_id_problems(self.target_layer_ids, self.num_target_layers)
        if len(self.layer_types) != self.num_hidden_layers:
            yield (
                f"layer_types has {len(self.layer_types)} entries for "
                f"num_hidden_layers {self.num_hidden_layers}"
            )
        unknown = sorted(set(self.layer_types) - {FULL, SLIDING})
        if unknown:
            yield f"layer_types holds {unknown}; known are {FULL} and {SLIDING}"
        width = self.sliding_window
        if SLIDING in self.layer_types and (not isinstance(width, int) or width < 1):
            yield f"layer_types holds {SLIDING} but sliding_window is {width!r}"
        if self.dtype not in DTYPES:
            yield f"dtype is {self.dtype!r}; known are {', '.join(DTYPES)}"

    @property
    def num_captured_layers(self) -> int:
        """K, the number of target layers whose hidden states are concatenated."""
        return len(self.target_layer_ids)

    @property
    def target_hidden_size(self) -> int:
        """Width of the concatenated target hidden states, K H."""
        return self.num_captured_layers * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Weights of the drafter; embedding and lm_head belong to the target and do not count."""
        heads = self.num_attention_heads + self.num_key_value_heads
        attention = 2 * self.hidden_size * heads * self.head_dim + 2 * self.head_dim
        mlp = 3 * self.hidden_size * self.intermediate_size
        layer = attention + mlp + 2 * self.hidden_size
        fusion = self.target_hidden_size * self.hidden_size + self.hidden_size
        return self.num_hidden_layers * layer + fusion + self.hidden_size

    def window_of(self, layer: int) -> int | None:
        """Window width of drafter layer `layer` in tokens; None when it sees the whole context."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def to_dict(self) -> dict[str, Any]:
        """The contents of config.json, as servers expect it."""
        return to_fields(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], *, where: str = "config.json") -> DrafterConfig:
        """Read the contents of a config.json; DrafterError names `where` and every wrong key."""
        arguments = parse_fields(fields, where=where)
        try:
            return cls(**arguments)
        except DrafterError as error:
            raise DrafterError(f"{where}: {error.detail}") from None

    @classmethod
    def read(cls, path: Path) -> DrafterConfig:
        """Read the config.json at `path`; DrafterError when it is missing or not JSON."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DrafterError(
                f"{path} does not exist; give the folder of an exported drafter"
            ) from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise DrafterError(f"{path} is not valid JSON: {error}") from None
        if not isinstance(fields, dict):
            raise DrafterError(f"{path} does not hold a JSON object")
        return cls.from_dict(fields, where=str(path))

    @classmethod
    def for_target(
        cls,
        target_config: Any,
        *,
        num_hidden_layers: int,
        block_size: int,
        mask_token_id: int,
        target_layer_ids: Sequence[int] | None = None,
        **overrides: Any,
    ) -> DrafterConfig:
        """A drafter that fits a target.

        target_config: the target's config.json as a mapping, or a transformers configuration (with
        a nested text_config where the target is multimodal). Dimensions follow the target's
        decoder; `overrides` sets any other field, for instance num_attention_heads,
        intermediate_size, layer_types and sliding_window. Raises DrafterError, TargetModelError.
        """
        shape = TargetShape.of(target_config)
        layers = shape.num_hidden_layers
        ids = (
            default_target_layer_ids(layers, num_hidden_layers)
            if target_layer_ids is None
            else tuple(target_layer_ids)
        )
        arguments: dict[str, Any] = {
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_attention_heads": shape.num_attention_heads,
            "num_key_value_heads": shape.num_key_value_heads,
            "head_dim": shape.head_dim,
            "vocab_size": shape.vocab_size,
            "rms_norm_eps": shape.rms_norm_eps,
            "rope_theta": shape.rope_theta,
            "max_position_embeddings": shape.max_position_embeddings,
            "num_target_layers": layers,
            "num_hidden_layers": num_hidden_layers,
            "block_size": block_size,
            "mask_token_id": mask_token_id,
            "target_layer_ids": ids,
        }
        return cls(**{**arguments, **overrides})

    def require_fit(self, shape: TargetShape) -> None:
        """Raise DrafterError naming every dimension in which this drafter does not fit a target."""
        pairs = (
            ("hidden_size", self.hidden_size, shape.hidden_size),
            ("vocab_size", self.vocab_size, shape.vocab_size),
            ("num_target_layers", self.num_target_layers, shape.num_hidden_layers),
        )
        problems = [
            f"{name} is {mine} in the drafter and {theirs} in the target"
            for name, mine, theirs in pairs
            if mine != theirs
        ]
        if problems:
            raise DrafterError(
                f"the drafter does not fit the target: {'; '.join(problems)}; use the target "
                "that the drafter was trained for, or train another drafter"
            )
