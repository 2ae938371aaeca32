"""The drafter's figures on a held-out set, between training steps.

Fast, because it needs the target's hidden states once and no decoding; what it says of acceptance
is a simulation. Real acceptance is measured by `speculative`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from shared.dflash.batch import DrafterBatch
from shared.dflash.metrics import LossTerms
from shared.dflash.model import DFlashDraftModel
from shared.dflash.objective import Objective, training_terms
from shared.dflash.target_head import TargetHead


def evaluate(
    draft_model: DFlashDraftModel,
    target_head: TargetHead,
    batches: Iterable[DrafterBatch],
    objective: Objective | None = None,
) -> LossTerms:
    """Sums over a held-out set, without gradients.

    Make the batches once, with one epoch number, so that the anchors stay fixed and figures of
    different steps compare. Raises ValueError when there is no batch.
    """
    total: LossTerms | None = None
    with torch.no_grad():
        for batch in batches:
            terms = training_terms(draft_model, target_head, batch, objective)
            total = terms if total is None else total + terms
    if total is None:
        raise ValueError("the held-out set is empty; give at least one batch")
    return total
