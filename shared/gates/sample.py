"""Checks of one sample by itself.

Each check looks at ids, or at the decoded answer where there is one. The first reason that applies
wins; the order below goes from what explains most to what explains least.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.config.schema import GateSection
from shared.gates.reasons import Reason

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_NGRAM_TOKENS = 10
_MIN_NGRAMS = 32  # below this a repeated n-gram says nothing


@dataclass(frozen=True)
class GateTokens:
    """What the gates must know of the tokenizer."""

    mask_token_id: int | None = None
    think_open_id: int | None = None
    think_close_id: int | None = None
    special_texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A sample that asks to be accepted.

    `input_ids` and `loss_mask` are what would be trained on, already cut to the maximal length;
    `text` is the decoded answer with special tokens, None for data that was tokenised elsewhere
    (the checks of text do not apply then).
    """

    seq: int
    input_ids: Sequence[int]
    loss_mask: Sequence[int]
    prompt_sha256: str = ""
    text: str | None = None
    finish_reason: str = "stop"
    thinking: bool | None = None

    @property
    def num_supervised_tokens(self) -> int:
        return sum(1 for one in self.loss_mask if one)

    @property
    def supervised_ids(self) -> list[int]:
        return [one for one, kept in zip(self.input_ids, self.loss_mask, strict=True) if kept]


@dataclass(frozen=True)
class Finding:
    """Why a sample is rejected; `detail` has the figures."""

    reason: Reason
    detail: str


@dataclass(frozen=True)
class SampleChecks:
    """The stateless gates under one configuration."""

    gates: GateSection
    tokens: GateTokens = field(default_factory=GateTokens)

    def first_finding(self, sample: Candidate) -> Finding | None:
        """The first reason against the sample, or None."""
        checks: tuple[Callable[[Candidate], Finding | None], ...] = (
            self._content,
            self._mask_token,
            self._thinking,
            self._truncated,
            self._supervised,
            self._repetition,
        )
        for check in checks:
            found = check(sample)
            if found is not None:
                return found
        return None

    def _content(self, sample: Candidate) -> Finding | None:
        if not len(sample.input_ids) or (sample.text is not None and not sample.text):
            return Finding(Reason.EMPTY, "the answer has no tokens")
        if sample.text is None:
            return None
        if not sample.text.strip():
            return Finding(Reason.EMPTY, "the answer is white space")
        if not self._plain(sample.text):
            return Finding(Reason.SCAFFOLD_ONLY, "the answer holds template tokens only")
        return None

    def _plain(self, text: str) -> str:
        """The answer without special tokens, think tags and white space around it."""
        texts = {*self.tokens.special_texts, THINK_OPEN, THINK_CLOSE}
        pattern = "|".join(re.escape(one) for one in sorted(texts, key=len, reverse=True) if one)
        return re.sub(pattern, "", text).strip()

    def _mask_token(self, sample: Candidate) -> Finding | None:
        mask = self.tokens.mask_token_id
        if mask is None or mask not in sample.input_ids:
            return None
        where = list(sample.input_ids).index(mask)
        return Finding(Reason.MASK_TOKEN, f"mask token {mask} at position {where}")

    def _thinking(self, sample: Candidate) -> Finding | None:
        if sample.text is None or not self.gates.require_closed_thinking:
            return None
        opened = THINK_OPEN in sample.text or self._prompt_opens_thinking(sample)
        if opened and THINK_CLOSE not in sample.text:
            return Finding(Reason.THINKING_NOT_CLOSED, f"no {THINK_CLOSE} in the answer")
        if not sample.thinking:
            return None
        if THINK_CLOSE not in sample.text:
            return Finding(Reason.THINKING_MISSING, "thinking was asked for, the answer has none")
        thought = sample.text.partition(THINK_CLOSE)[0].rpartition(THINK_OPEN)[2]
        if not thought.strip():
            return Finding(Reason.THINKING_MISSING, "thinking was asked for, the thought is empty")
        return None

    def _prompt_opens_thinking(self, sample: Candidate) -> bool:
        """Whether the prompt ends inside a thought: some templates write the opening tag."""
        opening, closing = self.tokens.think_open_id, self.tokens.think_close_id
        if opening is None or closing is None:
            return False
        for token, kept in zip(reversed(sample.input_ids), reversed(sample.loss_mask), strict=True):
            if not kept and token in (opening, closing):
                return token == opening
        return False

    def _truncated(self, sample: Candidate) -> Finding | None:
        if self.gates.drop_truncated and sample.finish_reason == "length":
            return Finding(Reason.TRUNCATED, "generation stopped at the length limit")
        return None

    def _supervised(self, sample: Candidate) -> Finding | None:
        count, least = sample.num_supervised_tokens, self.gates.min_supervised_tokens
        if count < least:
            return Finding(
                Reason.TOO_FEW_SUPERVISED, f"{count} supervised tokens, at least {least} are needed"
            )
        mask = sample.loss_mask
        if not any(mask[at] and mask[at + 1] for at in range(len(mask) - 1)):
            return Finding(Reason.NO_CONSECUTIVE_SUPERVISED, f"{count} lone supervised tokens")
        return None

    def _repetition(self, sample: Candidate) -> Finding | None:
        share = repeated_ngram_share(sample.supervised_ids)
        if share <= self.gates.max_repeated_ngram_share:
            return None
        return Finding(
            Reason.REPETITION_LOOP,
            f"{share:.0%} of the {_NGRAM_TOKENS}-token sequences occur more than once",
        )


def repeated_ngram_share(ids: Sequence[int]) -> float:
    """1 - distinct / all over the n-grams of an answer; 0 for answers too short to judge."""
    total = len(ids) - _NGRAM_TOKENS + 1
    if total < _MIN_NGRAMS:
        return 0.0
    distinct = {tuple(ids[at : at + _NGRAM_TOKENS]) for at in range(total)}
    return 1 - len(distinct) / total
