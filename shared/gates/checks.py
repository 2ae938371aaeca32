"""The gates of one sample: pure functions of the sample and the configuration.

Each check answers for a whole batch which samples it rejects. The first reason that applies wins;
the order goes from what explains most to what explains least.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shared.config.schema import GateSection
from shared.gates.ngrams import REPETITION_UNITS, offsets_of, repeated_shares, sums
from shared.gates.reasons import Reason
from shared.gates.sample import Candidate, CandidateBatch, Finding, GateTokens

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

Findings = dict[int, Finding]  # by position in the batch


@dataclass(frozen=True)
class SampleChecks:
    """The stateless gates under one configuration."""

    gates: GateSection
    tokens: GateTokens = field(default_factory=GateTokens)

    def findings(self, batch: CandidateBatch) -> Findings:
        """The first reason against each sample that has one."""
        checks: tuple[Callable[[CandidateBatch], Findings], ...] = (
            self._content,
            self._mask_token,
            self._thinking,
            self._truncated,
            self._supervised,
            self._repetition,
        )
        found: Findings = {}
        for check in reversed(checks):
            found.update(check(batch))
        return found

    def first_finding(self, sample: Candidate) -> Finding | None:
        """The first reason against one sample, or None."""
        return self.findings(CandidateBatch.of([sample])).get(0)

    def _content(self, batch: CandidateBatch) -> Findings:
        found: Findings = {}
        scaffold = self._scaffold.fullmatch
        for at, text in enumerate(batch.texts):
            if text is None:
                continue
            if not text:
                found[at] = Finding(Reason.EMPTY, f"the answer has no {batch.unit}s")
            elif scaffold(text) is not None:
                if text.isspace():
                    found[at] = Finding(Reason.EMPTY, "the answer is white space")
                else:
                    detail = "the answer holds template tokens only"
                    found[at] = Finding(Reason.SCAFFOLD_ONLY, detail)
        for at in np.flatnonzero(np.diff(batch.offsets) == 0).tolist():
            if batch.unit == "token":
                found[at] = Finding(Reason.EMPTY, "the answer has no tokens")
            else:
                found.setdefault(at, Finding(Reason.EMPTY, "the sample has no words"))
        return found

    @cached_property
    def _scaffold(self) -> re.Pattern[str]:
        """Matches a text of nothing but special tokens, think tags and white space."""
        texts = {*self.tokens.special_texts, THINK_OPEN, THINK_CLOSE}
        longest_first = sorted(texts, key=lambda text: (-len(text), text))
        return re.compile("|".join([r"(?:\s+", *(re.escape(t) for t in longest_first if t)]) + ")*")

    def _mask_token(self, batch: CandidateBatch) -> Findings:
        mask = self.tokens.mask_token_id
        if mask is None or batch.unit != "token":
            return {}
        where = np.flatnonzero(batch.units == mask)
        samples = np.searchsorted(batch.offsets, where, side="right") - 1
        found: Findings = {}
        for at, position in zip(samples.tolist(), where.tolist(), strict=True):
            detail = f"mask token {mask} at position {position - int(batch.offsets[at])}"
            found.setdefault(at, Finding(Reason.MASK_TOKEN, detail))
        return found

    def _thinking(self, batch: CandidateBatch) -> Findings:
        if not self.gates.require_closed_thinking:
            return {}
        found: Findings = {}
        unclosed: list[int] = []
        for at, (text, wanted) in enumerate(zip(batch.texts, batch.thinking, strict=True)):
            if text is None:
                continue
            if THINK_CLOSE not in text:
                unclosed.append(at)
            elif wanted:
                thought = text.partition(THINK_CLOSE)[0].rpartition(THINK_OPEN)[2]
                if not thought.strip():
                    detail = "thinking was asked for, the thought is empty"
                    found[at] = Finding(Reason.THINKING_MISSING, detail)
        opened_by_prompt = self._prompt_opens_thinking(batch) if unclosed else set()
        for at in unclosed:
            if at in opened_by_prompt or THINK_OPEN in (batch.texts[at] or ""):
                found[at] = Finding(Reason.THINKING_NOT_CLOSED, f"no {THINK_CLOSE} in the answer")
            elif batch.thinking[at]:
                detail = "thinking was asked for, the answer has none"
                found[at] = Finding(Reason.THINKING_MISSING, detail)
        return found

    def _prompt_opens_thinking(self, batch: CandidateBatch) -> set[int]:
        """Samples whose prompt ends inside a thought: some templates write the opening tag."""
        opening, closing = self.tokens.think_open_id, self.tokens.think_close_id
        if opening is None or closing is None or batch.unit != "token":
            return set()
        tags = ((batch.units == opening) | (batch.units == closing)) & ~batch.supervised
        where = np.flatnonzero(tags)
        samples = np.searchsorted(batch.offsets, where, side="right") - 1
        # The last tag of a sample decides; a later assignment to the same index wins.
        last = np.full(len(batch), closing, np.int64)
        last[samples] = batch.units[where]
        return set(np.flatnonzero(last == opening).tolist())

    def _truncated(self, batch: CandidateBatch) -> Findings:
        if not self.gates.drop_truncated:
            return {}
        detail = "generation stopped at the length limit"
        return {
            at: Finding(Reason.TRUNCATED, detail)
            for at, reason in enumerate(batch.finish_reasons)
            if reason == "length"
        }

    def _supervised(self, batch: CandidateBatch) -> Findings:
        if batch.unit != "token":
            return {}
        found: Findings = {}
        for at in np.flatnonzero(_neighbours(batch) == 0).tolist():
            detail = f"{batch.sizes[at]} lone supervised tokens"
            found[at] = Finding(Reason.NO_CONSECUTIVE_SUPERVISED, detail)
        least = self.gates.min_supervised_tokens
        for at in np.flatnonzero(batch.sizes < least).tolist():
            detail = f"{batch.sizes[at]} supervised tokens, at least {least} are needed"
            found[at] = Finding(Reason.TOO_FEW_SUPERVISED, detail)
        return found

    def _repetition(self, batch: CandidateBatch) -> Findings:
        answers = offsets_of(sums(batch.supervised, batch.offsets))
        shares = repeated_shares(batch.units[batch.supervised], answers)
        return {
            at: Finding(
                Reason.REPETITION_LOOP,
                f"{shares[at]:.0%} of the {REPETITION_UNITS}-{batch.unit} sequences occur more "
                "than once",
            )
            for at in np.flatnonzero(shares > self.gates.max_repeated_ngram_share).tolist()
        }


def _neighbours(batch: CandidateBatch) -> NDArray[np.int64]:
    """[B] pairs of neighbouring supervised units."""
    pairs = np.zeros(len(batch.units), bool)
    np.logical_and(batch.supervised[:-1], batch.supervised[1:], out=pairs[:-1])
    ends = batch.offsets[1:] - 1
    pairs[ends[ends >= 0]] = False
    return sums(pairs, batch.offsets)
