"""Counts of a run's gates, and the data-quality report made of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from shared.config.schema import GateSection
from shared.gates.reasons import ADVICE, Reason
from shared.gates.sample import Candidate, Finding
from shared.gates.window import Verdict, judge_shares

_NUM_EXAMPLES = 3
_EXCERPT_CHARACTERS = 300


@dataclass
class GateLedger:
    """Everything the report says, kept up to date sample by sample."""

    gates: GateSection
    num_seen: int = 0
    num_accepted: int = 0
    num_supervised_tokens: int = 0  # of accepted samples
    rejected: Counter[Reason] = field(default_factory=Counter)
    examples: dict[Reason, list[dict[str, Any]]] = field(default_factory=dict)
    mask_sums: Counter[int] = field(default_factory=Counter)
    _responses: Counter[bytes] = field(default_factory=Counter)
    _repeats: Counter[bytes] = field(default_factory=Counter)  # by answer, of repeated prompts
    _top_response: tuple[int, bytes, str] = (0, b"", "")

    def count(self, sample: Candidate, finding: Finding | None) -> None:
        """Enter one judged sample."""
        self.num_seen += 1
        supervised = sample.num_supervised_tokens
        self.mask_sums[supervised] += 1
        self._count_response(sample, finding)
        if finding is None:
            self.num_accepted += 1
            self.num_supervised_tokens += supervised
            return
        self.rejected[finding.reason] += 1
        kept = self.examples.setdefault(finding.reason, [])
        if len(kept) < _NUM_EXAMPLES:
            kept.append(
                {
                    "seq": sample.seq,
                    "prompt_sha256": sample.prompt_sha256,
                    "num_supervised_tokens": supervised,
                    "detail": finding.detail,
                    "text": _excerpt(sample.text),
                }
            )

    def verdict(self) -> Verdict:
        """The shares so far against the limits."""
        count, key, text = self._top_response
        return judge_shares(
            self.gates,
            num_seen=self.num_seen,
            rejected=self.rejected,
            same_response=count,
            same_response_text=text[:40],
            same_response_repeats=self._repeats[key],
        )

    def report(self) -> dict[str, Any]:
        """The report as plain JSON; the same for a run and for `data check`."""
        seen = max(self.num_seen, 1)
        verdict = self.verdict()
        count, _, text = self._top_response
        rejected = self.num_seen - self.num_accepted
        mask_sum, mask_count = max(
            self.mask_sums.items(), key=lambda item: (item[1], -item[0]), default=(0, 0)
        )
        return {
            "num_seen": self.num_seen,
            "num_accepted": self.num_accepted,
            "num_rejected": rejected,
            "rejected_share": rejected / seen,
            "rejected_limit": self.gates.max_rejected_share,
            "num_supervised_tokens": self.num_supervised_tokens,
            "reasons": [
                {
                    "reason": reason.value,
                    "count": self.rejected[reason],
                    "share": self.rejected[reason] / seen,
                    "limit": self.gates.max_reason_share,
                    "advice": ADVICE[reason],
                    "examples": self.examples.get(reason, []),
                }
                for reason in Reason
            ],
            "most_frequent_response": {
                "text": text,
                "count": count,
                "share": count / seen,
                "limit": self.gates.max_same_response_share,
            },
            "mask_sums": {
                "most_frequent": {
                    "value": mask_sum,
                    "count": mask_count,
                    "share": mask_count / seen,
                },
                "histogram": histogram(self.mask_sums),
            },
            "blocked": verdict.blocked,
            "block_reason": verdict.reason,
            "cause": verdict.cause,
        }

    def _count_response(self, sample: Candidate, finding: Finding | None) -> None:
        ids = ",".join(map(str, sample.supervised_ids))
        key = hashlib.blake2b(ids.encode(), digest_size=8).digest()
        self._responses[key] += 1
        if finding is not None and finding.reason is Reason.EXACT_DUPLICATE:
            self._repeats[key] += 1
        if self._responses[key] > self._top_response[0]:
            self._top_response = (self._responses[key], key, _excerpt(sample.text) or "")


def histogram(mask_sums: Counter[int]) -> list[dict[str, int]]:
    """Bins [0, 1), [1, 2), [2, 4), [4, 8) ... over the supervised tokens of a sample."""
    bins: Counter[int] = Counter()
    for value, count in mask_sums.items():
        bins[value.bit_length()] += count
    return [
        {
            "from": 0 if width == 0 else 1 << (width - 1),
            "to": 1 << width,
            "count": bins[width],
        }
        for width in range(max(bins, default=-1) + 1)
    ]


def _excerpt(text: str | None) -> str | None:
    return None if text is None else text[:_EXCERPT_CHARACTERS]
