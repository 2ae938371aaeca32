"""What a drafter must know of its target's dimensions, read from the target's configuration.

Works on the plain config.json object as well as on a transformers configuration, so that the
control plane can read a target without transformers. The mask token is chosen here too, because the
rule needs only the target's vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import TargetModelError


@dataclass(frozen=True)
class TargetShape:
    """Dimensions of a target's text decoder."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int

    @classmethod
    def of(cls, target_config: Any, *, where: str = "the target's config.json") -> TargetShape:
        """From a mapping or an object with `to_dict`; TargetModelError names what is missing."""
        fields = target_config if isinstance(target_config, Mapping) else target_config.to_dict()
        if isinstance(fields.get("text_config"), Mapping):
            fields = fields["text_config"]
        needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        missing = [key for key in needed if fields.get(key) is None]
        if missing:
            raise TargetModelError(
                f"{where} lacks {', '.join(missing)}; the target must be a causal language model "
                "of the Llama or Qwen families"
            )
        heads = fields["num_attention_heads"]
        return cls(
            hidden_size=fields["hidden_size"],
            intermediate_size=fields.get("intermediate_size") or 4 * fields["hidden_size"],
            num_hidden_layers=fields["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=fields.get("num_key_value_heads") or heads,
            head_dim=fields.get("head_dim") or fields["hidden_size"] // heads,
            vocab_size=fields["vocab_size"],
            rms_norm_eps=fields.get("rms_norm_eps") or 1e-6,
            rope_theta=_rope_theta(fields),
            max_position_embeddings=fields.get("max_position_embeddings") or 32_768,
        )

    @classmethod
    def read(cls, folder: Path) -> TargetShape:
        """From the config.json in a target folder."""
        path = folder / "config.json"
        if not folder.is_dir():
            raise TargetModelError(f"target folder {folder} does not exist")
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise TargetModelError(
                f"{path} does not exist; the target must be a folder in the Hugging Face layout"
            ) from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise TargetModelError(f"{path} is not valid JSON: {error}") from None
        if not isinstance(fields, dict):
            raise TargetModelError(f"{path} does not hold a JSON object")
        return cls.of(fields, where=str(path))


def choose_mask_token_id(
    *,
    vocab_size: int,
    tokenizer_size: int,
    explicit: int | None = None,
    tokenizer_mask_id: int | None = None,
    used_ids: Collection[int] = (),
) -> int:
    """The id whose embedding stands for 'not drafted yet'.

    The explicit one, else the tokenizer's mask token, else the first embedding row that no token
    uses: at or above `tokenizer_size` (ids of the tokenizer, added ones included) and not in
    `used_ids`. Never padding or end of text on its own initiative: those carry meaning for the
    target. Raises TargetModelError when no row is free.
    """
    if explicit is not None:
        if not 0 <= explicit < vocab_size:
            raise TargetModelError(
                f"mask_token_id {explicit} lies outside the target's {vocab_size} embedding rows"
            )
        return explicit
    if tokenizer_mask_id is not None and 0 <= tokenizer_mask_id < vocab_size:
        return tokenizer_mask_id
    for candidate in range(tokenizer_size, vocab_size):
        if candidate not in used_ids:
            return candidate
    raise TargetModelError(
        f"the tokenizer has no mask token and uses all {vocab_size} embedding rows of the target; "
        "set mask_token_id to a token that never occurs in text"
    )


def _rope_theta(fields: Mapping[str, Any]) -> float:
    parameters = fields.get("rope_parameters") or {}
    if "rope_theta" not in parameters:
        # Targets with several kinds of layers keep one set of parameters for each kind.
        nested = [one for one in parameters.values() if isinstance(one, Mapping)]
        parameters = parameters.get("full_attention") or (nested[0] if nested else {})
    return float(fields.get("rope_theta") or parameters.get("rope_theta") or 10_000.0)
