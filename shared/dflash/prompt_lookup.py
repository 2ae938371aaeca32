"""Prompt-lookup decoding: the drafter that needs no training, as a baseline.

It goes through the same verification loop as a trained drafter, so its figures compare directly.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class PromptLookupDrafter:
    """Prompt-lookup decoding: repeats what followed the same last tokens earlier in the text.

    The baseline that needs no training. The longest suffix of at most `max_ngram` tokens that
    occurs earlier is looked up at its latest occurrence.
    """

    def __init__(self, max_drafts: int, max_ngram: int = 3) -> None:
        if max_drafts < 1 or max_ngram < 1:
            raise ValueError(
                f"max_drafts {max_drafts} and max_ngram {max_ngram} must be at least 1"
            )
        self._max_drafts, self._max_ngram = max_drafts, max_ngram

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return ()

    @property
    def max_drafts(self) -> int:
        return self._max_drafts

    def start(self) -> None:
        """Nothing is kept between prompts."""

    def extend(self, captured: Tensor | None) -> None:
        """Hidden states are of no use here."""

    def propose(self, tokens: Sequence[int], num_drafts: int) -> list[int]:
        text = list(tokens)
        for size in range(min(self._max_ngram, len(text) - 1), 0, -1):
            suffix = text[-size:]
            for start in range(len(text) - size - 1, -1, -1):
                if text[start : start + size] == suffix:
                    return text[start + size : start + size + num_drafts]
        return []
