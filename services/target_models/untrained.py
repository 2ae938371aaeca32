"""The drafter a run starts from: the same weights on every machine, given shape and seed."""

from __future__ import annotations

import torch

from shared.dflash.config import DrafterConfig
from shared.dflash.model import DFlashDraftModel


def untrained_drafter(shape: DrafterConfig, seed: int) -> DFlashDraftModel:
    """A new drafter in float32, on the CPU."""
    model = DFlashDraftModel(shape)
    model.initialise(torch.Generator().manual_seed(seed))
    return model
