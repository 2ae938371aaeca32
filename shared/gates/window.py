"""The limits of a run's shares, and the window after which they are judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from shared.config.schema import GateSection
from shared.gates.reasons import ADVICE, SAME_RESPONSE_ADVICE, Reason


@dataclass(frozen=True)
class Verdict:
    """`blocked` with the limits that were passed, and what to check."""

    blocked: bool
    reason: str | None = None
    cause: str | None = None

    @property
    def text(self) -> str | None:
        """Limits and causes as sentences; None when nothing blocks."""
        return f"{self.reason}. {self.cause}" if self.blocked else None


def window_size(gates: GateSection, num_prompts: int) -> int:
    """Completions that must be judged before a target forward may start.

    gates.window_completions, but at most gates.window_share_of_prompts of the prompts, and at
    least one.
    """
    share = math.floor(gates.window_share_of_prompts * num_prompts)
    return max(1, min(gates.window_completions, share))


def judge_shares(
    gates: GateSection,
    *,
    num_seen: int,
    rejected: Mapping[Reason, int],
    same_response: int,
    same_response_text: str = "",
    same_response_repeats: int = 0,
) -> Verdict:
    """Compare the shares of everything seen with the limits.

    `same_response` counts the most frequent answer, `same_response_repeats` how many of those were
    rejected as exact duplicates: a repeated prompt explains them, so they say nothing against the
    chat template. With few samples a single one can pass a limit, so at least two must have gone
    wrong the same way.
    """
    if num_seen == 0:
        return Verdict(False)
    passed: list[str] = []
    causes: list[str] = []
    total = sum(rejected.values())
    for reason, count in sorted(rejected.items(), key=lambda item: (-item[1], item[0])):
        if count >= 2 and count / num_seen > gates.max_reason_share:
            passed.append(
                f"{count} of {num_seen} ({count / num_seen:.0%}) are {reason.value}, "
                f"gates.max_reason_share allows {gates.max_reason_share:.0%}"
            )
            causes.append(ADVICE[reason])
    if same_response >= 2 and same_response / num_seen > gates.max_same_response_share:
        shown = f" ({same_response_text!r})" if same_response_text else ""
        passed.append(
            f"{same_response} of {num_seen} ({same_response / num_seen:.0%}) answers are the "
            f"same{shown}, gates.max_same_response_share allows "
            f"{gates.max_same_response_share:.0%}"
        )
        to_other_prompts = same_response - same_response_repeats
        if to_other_prompts / num_seen > gates.max_same_response_share:
            causes.append(SAME_RESPONSE_ADVICE)
        elif not causes:
            causes.append(ADVICE[Reason.EXACT_DUPLICATE])
    if total >= 2 and total / num_seen > gates.max_rejected_share:
        passed.append(
            f"{total} of {num_seen} ({total / num_seen:.0%}) are rejected, "
            f"gates.max_rejected_share allows {gates.max_rejected_share:.0%}"
        )
        if not causes and rejected:
            causes.append(ADVICE[max(rejected, key=lambda one: (rejected[one], one))])
    if not passed:
        return Verdict(False)
    return Verdict(True, "; ".join(passed), " ".join(dict.fromkeys(causes)))
