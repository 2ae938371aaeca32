"""Acceptance length: what a drafter is worth, from the counts of real speculative decoding.

Several figures go by the name; they differ in what they count and how they average. Each has its
own property here, and none is called just 'tau'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class PromptResult:
    """One decoded prompt.

    token_ids: the answer, its end-of-text token included. num_drafted and num_accepted: over all
    verification steps, tokens past an end of text included. equal_to_greedy: whether the answer is
    the target's own greedy one; None when that was not computed.
    """

    token_ids: list[int]
    finish_reason: FinishReason
    verification_steps: int
    num_drafted: int = 0
    num_accepted: int = 0
    equal_to_greedy: bool | None = None


@dataclass(frozen=True)
class AcceptanceResult:
    """Results over prompts; the lengths are in tokens and nan when nothing was verified."""

    prompts: Sequence[PromptResult]

    @property
    def generated_tokens(self) -> int:
        return sum(len(one.token_ids) for one in self.prompts)

    @property
    def verification_steps(self) -> int:
        return sum(one.verification_steps for one in self.prompts)

    @property
    def acceptance_length(self) -> float:
        """Generated tokens / verification steps, pooled over prompts.

        As SGLang counts: the first token of an answer comes from the prefill and is counted too, so
        a drafter that never hits reads slightly above 1.
        """
        return _ratio(self.generated_tokens, self.verification_steps)

    @property
    def drafts_accepted_length(self) -> float:
        """1 + accepted drafts / verification steps, pooled over prompts; as vLLM counts."""
        return 1 + _ratio(sum(one.num_accepted for one in self.prompts), self.verification_steps)

    @property
    def mean_of_prompt_means(self) -> float:
        """Mean over prompts of 1 + accepted drafts / steps; as the reference implementation counts.

        Prompts without a verification step (their first token ended the text) are left out.
        """
        means = [
            1 + one.num_accepted / one.verification_steps
            for one in self.prompts
            if one.verification_steps
        ]
        return _ratio(sum(means), len(means))

    @property
    def num_equal_to_greedy(self) -> int:
        """Prompts whose answer was compared with the greedy one and is equal."""
        return sum(one.equal_to_greedy is True for one in self.prompts)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")
