"""The figures of a target model that a forecast needs, from its config.json alone.

Parameter counts follow the dimension fields. A layer of linear attention (`linear_attention` in
`layer_types`) is counted by its projections; experts count only those active for a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import TargetModelError


@dataclass(frozen=True)
class TargetShape:
    """Sizes of a decoder-only target; parameters are counts, not bytes."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    params_per_layer: float
    active_params_per_layer: float
    tied: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TargetShape:
        """From a config.json tree; a nested `text_config` is used when there is one."""
        text = {**config, **config.get("text_config", {})}
        try:
            hidden, layers = int(text["hidden_size"]), int(text["num_hidden_layers"])
            heads, vocab = int(text["num_attention_heads"]), int(text["vocab_size"])
        except KeyError as missing:
            raise TargetModelError(
                f"the target's config.json lacks {missing}: is the folder a decoder-only "
                "language model in Hugging Face format?"
            ) from None
        kv_heads = int(text.get("num_key_value_heads") or heads)
        head_dim = int(text.get("head_dim") or hidden // heads)
        intermediate = int(text.get("intermediate_size") or 4 * hidden)
        full = hidden * head_dim * (2 * heads + 2 * kv_heads)
        kinds = list(text.get("layer_types") or ["full_attention"] * layers)
        linear = _linear_attention_params(text, hidden)
        attention = sum(linear if kind == "linear_attention" else full for kind in kinds) / layers
        dense = 3 * hidden * intermediate
        stored, active = float(dense), float(dense)
        if experts := int(text.get("num_experts") or text.get("num_local_experts") or 0):
            expert = 3 * hidden * int(text.get("moe_intermediate_size") or intermediate)
            stored = float(experts * expert)
            active = float(int(text.get("num_experts_per_tok") or 1) * expert)
        return cls(
            hidden_size=hidden,
            num_hidden_layers=layers,
            vocab_size=vocab,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=intermediate,
            params_per_layer=attention + stored,
            active_params_per_layer=attention + active,
            tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        )

    @property
    def num_params(self) -> float:
        """All weights, embeddings included."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied else 2)
        return self.params_per_layer * self.num_hidden_layers + embeddings


def _linear_attention_params(text: Mapping[str, Any], hidden: int) -> float:
    """Projections of a gated delta net layer: q, k, v, output gate, out; small ones left out."""
    key_dim = int(text.get("linear_num_key_heads") or 0) * int(text.get("linear_key_head_dim") or 0)
    value_dim = int(text.get("linear_num_value_heads") or 0) * int(
        text.get("linear_value_head_dim") or 0
    )
    return (
        float(hidden * (2 * key_dim + 3 * value_dim)) if key_dim and value_dim else 4.0 * hidden**2
    )
