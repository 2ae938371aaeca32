"""The drafter's shape as a run's configuration and its target folder fix it.

Every role that must agree on the shape (target_forward captures its layers, drafter_trainer builds
it, evaluator builds the untrained one) asks here. No torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.target_models.mask_token import mask_token_id_of
from shared.config import RunConfig
from shared.dflash.config import DrafterConfig
from shared.dflash.target_shape import TargetShape

_FOLLOWS_TARGET = (
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "sliding_window",
)


def drafter_config(config: RunConfig, target_folder: Path) -> DrafterConfig:
    """The configuration of the drafter that `config` asks for on the target in `target_folder`.

    Raises TargetModelError for an unusable folder, DrafterError for a shape that cannot be.
    """
    TargetShape.read(target_folder)  # says what is wrong with the folder
    fields = json.loads((target_folder / "config.json").read_text(encoding="utf-8"))
    section = config.drafter
    overrides: dict[str, Any] = {
        name: getattr(section, name)
        for name in _FOLLOWS_TARGET
        if getattr(section, name) is not None
    }
    if section.layer_types is not None:
        overrides["layer_types"] = tuple(section.layer_types)
    return DrafterConfig.for_target(
        fields,
        num_hidden_layers=section.num_hidden_layers,
        block_size=section.block_size,
        mask_token_id=mask_token_id_of(target_folder, section.mask_token_id),
        target_layer_ids=section.target_layer_ids,
        dtype=config.trainer.dtype,
        **overrides,
    )
