"""The training objective: what each slot of a block must predict and how much it counts.

Slot j of the block at anchor a predicts the token at a + j. Sums leave here unnormalised: the
trainer adds them up over all micro-batches and ranks of an optimizer step and divides once, so that
neither the split into micro-batches nor the number of ranks changes the step.

- `decay`: weight exp(-(j - 1) / gamma); loss = sum(w CE) / sum(w).
- `dpace`: weight by the chance that a draft gets that far and beyond; loss = sum(w CE) / sequences.

Source: arXiv 2602.06036.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shared.dflash.attention import LayerMasks
from shared.dflash.batch import DrafterBatch
from shared.dflash.cross_entropy import CHUNK_LOGITS, weighted_cross_entropy
from shared.dflash.layout import BlockLayout
from shared.dflash.metrics import LossTerms, slot_statistics
from shared.dflash.model import DFlashDraftModel, block_input_ids
from shared.dflash.target_head import TargetHead

_GAMMAS = {16: 7.0, 10: 5.0, 8: 4.0}


@dataclass(frozen=True)
class Objective:
    """kind: "decay" or "dpace". gamma: None for the block size's default; infinity for no decay."""

    kind: str = "decay"
    gamma: float | None = None
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in ("decay", "dpace"):
            raise ValueError(f"objective kind is {self.kind!r}; known are decay and dpace")
        if self.gamma is not None and not self.gamma > 0:
            raise ValueError(f"gamma is {self.gamma}; it must be positive")
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha is {self.alpha}; it must lie between 0 and 1")


def default_gamma(block_size: int) -> float:
    """Decay constant in slots: the published ones, elsewhere about half a block."""
    return _GAMMAS.get(block_size, max(1.0, block_size / 2 - 1))


def slot_labels(batch: DrafterBatch, layout: BlockLayout) -> tuple[Tensor, Tensor]:
    """Label of every slot and whether it counts: int64 and bool [B, N, block_size].

    A slot counts when its block is used, it is not the anchor, and its position lies in the row, in
    the anchor's document, and under the loss mask.
    """
    slots = layout.slots
    inside = slots < layout.seq_len
    where = slots.clamp(max=layout.seq_len - 1).flatten(1)

    def at_slots(values: Tensor) -> Tensor:
        return values.gather(1, where).view(slots.shape)

    valid = layout.kept[:, :, None] & inside & at_slots(batch.loss_mask.bool())
    valid &= at_slots(layout.document_starts) == layout.anchor_starts[:, :, None]
    if batch.document_ids is not None:
        valid &= at_slots(batch.document_ids) >= 0
    valid[:, :, 0] = False
    return at_slots(batch.input_ids), valid


def draft_hidden(
    model: DFlashDraftModel,
    head: TargetHead,
    batch: DrafterBatch,
    layout: BlockLayout,
    masks: LayerMasks | None = None,
) -> Tensor:
    """Hidden states of all blocks of a batch: [B, N, block_size, H]."""
    anchor_ids = batch.input_ids.gather(1, layout.anchors)
    ids = block_input_ids(anchor_ids, layout.block_size, model.config.mask_token_id)
    embeddings = head.embed(ids.flatten(1))
    hidden = model(embeddings, batch.target_hidden_states, layout, masks)
    return hidden.unflatten(1, (-1, layout.block_size))


def training_terms(
    draft_model: DFlashDraftModel,
    target_head: TargetHead,
    batch: DrafterBatch,
    objective: Objective | None = None,
    *,
    chunk_logits: int = CHUNK_LOGITS,
) -> LossTerms:
    """Forward one micro-batch; `loss_sum.backward()` gives unnormalised gradients.

    After the last micro-batch of a step divide all gradients by the step's summed `weight_sum`.
    chunk_logits: float32 logits that may exist at once. Works under `torch.no_grad()` too.
    """
    objective = objective or Objective()
    config = draft_model.config
    layout = batch.layout(config.block_size)
    labels, valid = slot_labels(batch, layout)
    hidden = draft_hidden(draft_model, target_head, batch, layout)

    weights = valid.float()
    if objective.kind == "decay":
        gamma = objective.gamma or default_gamma(config.block_size)
        distance = torch.arange(config.block_size, device=weights.device, dtype=torch.float32) - 1
        weights = weights * torch.exp(-distance / gamma)
        weight_sum = weights.sum()
    else:
        weight_sum = weights.new_tensor(float(batch.num_sequences))

    loss_sum, slots = weighted_cross_entropy(
        hidden.flatten(0, 1),
        target_head.lm_head,
        labels.flatten(0, 1),
        weights.flatten(0, 1),
        dpace_alpha=objective.alpha if objective.kind == "dpace" else None,
        chunk_logits=chunk_logits,
    )
    return slot_statistics(loss_sum, weight_sum, slots.correct, valid.flatten(0, 1))
