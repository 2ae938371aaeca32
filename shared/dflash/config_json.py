"""config.json of an exported drafter: what is written, and what is refused when reading.

Pure functions between the JSON object and the arguments of `DrafterConfig`. Why some keys are
written the way they are:
- `rope_theta` and `rope_parameters` both, since older readers know only the first and fall back to
  a
  base of 10,000 without a word;
- `sliding_window`, `use_sliding_window` and explicit `layer_types` together, since readers drop the
  window when any of the three is missing;
- `dflash_config.target_layer_ids` always, since readers guess them when they are missing;
- `is_causal` only when false: it concerns sliding layers alone, and readers assume true.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shared.errors import DrafterError

if TYPE_CHECKING:
    from shared.dflash.config import DrafterConfig

FULL = "full_attention"
SLIDING = "sliding_attention"
ARCHITECTURE = "DFlashDraftModel"

# Keys that other writers add and that change nothing here.
_NEUTRAL_KEYS = frozenset(
    {
        "architectures", "model_type", "attention_bias", "attention_dropout", "hidden_act",
        "tie_word_embeddings", "use_sliding_window", "max_window_layers", "rope_parameters",
        "rope_scaling", "torch_dtype", "auto_map", "transformers_version", "initializer_range",
        "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "return_dict",
        "output_attentions", "output_hidden_states", "chunk_size_feed_forward", "id2label",
        "label2id", "is_encoder_decoder",
        "problem_type", "_name_or_path", "name_or_path", "pretraining_tp", "attn_implementation",
    }
)  # fmt: skip
_REQUIRED_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
    "num_target_layers",
    "block_size",
)
_OPTIONAL_KEYS = (
    "layer_types", "sliding_window", "is_causal", "rope_theta", "dtype", "dflash_config",
)  # fmt: skip
_NESTED_KEYS = ("mask_token_id", "target_layer_ids")


def to_fields(config: DrafterConfig) -> dict[str, Any]:
    """The JSON object of config.json, ready for `json.dumps`."""
    sliding = SLIDING in config.layer_types
    fields: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "layer_types": list(config.layer_types),
        "sliding_window": config.sliding_window if sliding else None,
        "use_sliding_window": sliding,
        "max_window_layers": config.num_hidden_layers,
        "tie_word_embeddings": False,
        "num_target_layers": config.num_target_layers,
        "block_size": config.block_size,
        "dtype": config.dtype,
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.target_layer_ids),
        },
    }
    if not config.is_causal:
        fields["is_causal"] = False
    return fields


def parse_fields(fields: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Arguments of `DrafterConfig` from the JSON object of config.json.

    `where` names the file in messages. Raises DrafterError that names every missing key, every key
    this library does not know, and every value it could not honour (bias, another activation,
    scaled rotary positions, tied embeddings).
    """
    problems = [f"missing key {key}" for key in _REQUIRED_KEYS if fields.get(key) is None]
    nested = fields.get("dflash_config")
    if not isinstance(nested, Mapping):
        problems.append(f"missing key dflash_config {{{', '.join(_NESTED_KEYS)}}}")
        nested = {}
    else:
        missing = [key for key in _NESTED_KEYS if nested.get(key) is None]
        problems += [f"missing key dflash_config.{key}" for key in missing]
        unknown = sorted(set(nested) - {*_NESTED_KEYS, "block_size"})
        problems += [f"unknown key dflash_config.{key}" for key in unknown]
    known = {*_NEUTRAL_KEYS, *_REQUIRED_KEYS, *_OPTIONAL_KEYS}
    problems += [f"unknown key {key}" for key in sorted(set(fields) - known)]
    problems += _unsupported(fields, nested)
    theta = _rope_theta(fields, problems)
    layer_types = _layer_types(fields, problems)
    if problems:
        raise DrafterError(f"{where}: " + "; ".join(problems))
    return {
        **{key: fields[key] for key in _REQUIRED_KEYS},
        "mask_token_id": nested["mask_token_id"],
        "target_layer_ids": tuple(nested["target_layer_ids"]),
        "rope_theta": theta,
        "layer_types": layer_types,
        "sliding_window": fields.get("sliding_window") if SLIDING in layer_types else None,
        "is_causal": fields.get("is_causal", True) is not False,
        "dtype": str(fields.get("dtype") or fields.get("torch_dtype") or "float32"),
    }


def _unsupported(fields: Mapping[str, Any], nested: Mapping[str, Any]) -> list[str]:
    problems = []
    architectures = fields.get("architectures")
    if architectures is not None and list(architectures) != [ARCHITECTURE]:
        problems.append(f'architectures is {architectures}; a drafter says ["{ARCHITECTURE}"]')
    if fields.get("attention_bias"):
        problems.append("attention_bias is true; DFlash projections have no bias")
    if fields.get("hidden_act", "silu") != "silu":
        problems.append(f"hidden_act is {fields['hidden_act']!r}; only silu is supported")
    if fields.get("tie_word_embeddings"):
        problems.append("tie_word_embeddings is true; the drafter holds no embeddings")
    if nested.get("block_size", fields.get("block_size")) != fields.get("block_size"):
        problems.append("dflash_config.block_size contradicts block_size")
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        problems.append(
            f"rotary scaling {kind!r} is not supported; only plain rotary positions are"
        )
    return problems


def _rope_theta(fields: Mapping[str, Any], problems: list[str]) -> float:
    top = fields.get("rope_theta")
    nested = (fields.get("rope_parameters") or {}).get("rope_theta")
    if top is None and nested is None:
        problems.append("missing key rope_theta (and rope_parameters.rope_theta)")
        return 1.0
    if top is not None and nested is not None and float(top) != float(nested):
        problems.append(f"rope_theta {top} contradicts rope_parameters.rope_theta {nested}")
    return float(top if top is not None else nested or 0.0)


def _layer_types(fields: Mapping[str, Any], problems: list[str]) -> tuple[str, ...]:
    given = fields.get("layer_types")
    if given is None and fields.get("use_sliding_window"):
        problems.append("use_sliding_window is true but layer_types is missing")
    layer_types = tuple(given or ())
    if SLIDING in layer_types and not fields.get("use_sliding_window", False):
        problems.append(f"layer_types holds {SLIDING} but use_sliding_window is not true")
    return layer_types
