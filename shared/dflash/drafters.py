"""What can propose tokens to the verification loop of `speculative`.

A drafter sees the same things whatever its kind: the tokens so far, and the target's hidden states
of every token but the last, as they become known. It proposes and never decides: a wrong proposal
costs time, not correctness.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from shared.dflash.layers import KeysValues
from shared.dflash.mask import decoding_mask
from shared.dflash.model import DFlashDraftModel, block_input_ids
from shared.dflash.target_head import TargetHead


class Drafter(Protocol):
    """One instance serves one prompt after another; `start` forgets the previous one.

    target_layer_ids: layers whose hidden states it wants, empty for none. max_drafts: most tokens
    it proposes in a step.
    """

    @property
    def target_layer_ids(self) -> tuple[int, ...]: ...

    @property
    def max_drafts(self) -> int: ...

    def start(self) -> None:
        """A new prompt begins."""

    def extend(self, captured: Tensor | None) -> None:
        """Hidden states [1, T, K H] of the next T tokens of the text; None if it wants none."""

    def propose(self, tokens: Sequence[int], num_drafts: int) -> list[int]:
        """At most `num_drafts` tokens that may follow `tokens`; may be empty."""


class DFlashDrafter:
    """Proposes one block a step; the last token of the text is the block's anchor.

    Keys and values of the context are kept in every layer. They only grow: a token enters the
    context once the target has accepted it, and the anchor never does before the next step.
    """

    def __init__(self, model: DFlashDraftModel, head: TargetHead) -> None:
        self._model, self._head = model, head
        self._context: list[KeysValues] = []
        self._length = 0

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return self._model.config.target_layer_ids

    @property
    def max_drafts(self) -> int:
        return self._model.config.block_size - 1

    def start(self) -> None:
        self._context, self._length = [], 0

    @torch.inference_mode()
    def extend(self, captured: Tensor | None) -> None:
        assert captured is not None, "a DFlash drafter reads the target's hidden states"
        model = self._model
        context = model.fuse(captured.to(model.fc.weight.dtype))
        start, self._length = self._length, self._length + context.shape[1]
        positions = torch.arange(start, self._length, device=context.device)[None]
        added = model.context_keys_values(context, model.rotary(positions, context.dtype))
        if start:
            added = [_joined(old, new) for old, new in zip(self._context, added, strict=True)]
        self._context = added

    def propose(self, tokens: Sequence[int], num_drafts: int) -> list[int]:
        assert self._length == len(tokens) - 1, "the context holds every token but the anchor"
        return self.draft_logits(tokens[-1])[:num_drafts].argmax(dim=-1).tolist()

    @torch.inference_mode()
    def draft_logits(self, anchor_id: int) -> Tensor:
        """Logits [block_size - 1, V] of the tokens after an anchor that follows the context."""
        config, device = self._model.config, self._head.embedding.device
        anchor = torch.tensor([anchor_id], device=device)
        ids = block_input_ids(anchor, config.block_size, config.mask_token_id)
        positions = torch.arange(config.block_size, device=device)[None] + self._length
        windows = {config.window_of(layer) for layer in range(config.num_hidden_layers)}
        masks = {
            window: decoding_mask(
                self._length,
                config.block_size,
                window,
                is_causal=config.is_causal,
                device=device,
            )
            for window in windows
        }
        embeddings = self._head.embed(ids).to(self._model.fc.weight.dtype)
        rotary = self._model.rotary(positions, embeddings.dtype)
        hidden = self._model.run_layers(embeddings, rotary, self._context, masks)
        return self._head.logits(hidden[0, 1:].to(self._head.lm_head.dtype))


def _joined(old: KeysValues, new: KeysValues) -> KeysValues:
    return torch.cat((old[0], new[0]), dim=2), torch.cat((old[1], new[1]), dim=2)
