"""Counts of a run's gates, and the data-quality report made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.config.schema import GateSection
from shared.gates.reasons import ADVICE, Reason
from shared.gates.responses import ResponseCounts
from shared.gates.sample import CandidateBatch, Finding, Unit
from shared.gates.window import Verdict, judge_shares

_NUM_EXAMPLES = 3
_EXCERPT_CHARACTERS = 300


@dataclass
class GateLedger:
    """Everything the report says, kept up to date sample by sample."""

    gates: GateSection
    num_seen: int = 0
    num_accepted: int = 0
    num_supervised_tokens: int = 0  # of accepted samples; characters when there is no tokenizer
    unit: Unit = "token"
    rejected: Counter[Reason] = field(default_factory=Counter)
    examples: dict[Reason, list[dict[str, Any]]] = field(default_factory=dict)
    mask_sums: Counter[int] = field(default_factory=Counter)
    responses: ResponseCounts = field(default_factory=ResponseCounts)

    def begin(self, batch: CandidateBatch) -> None:
        """The samples of `batch` will be counted in order, then `commit` is called."""
        self.unit = batch.unit
        self.responses.begin(batch.response_keys)

    def count(
        self, batch: CandidateBatch, at: int, key: int, size: int, finding: Finding | None
    ) -> None:
        """Enter one judged sample; `key` and `size` are its response key and size."""
        self.num_seen += 1
        self.mask_sums[size] += 1
        if not (batch.unit == "word" and batch.texts[at] is None):  # a row without an answer
            repeat = finding is not None and finding.reason is Reason.EXACT_DUPLICATE
            self.responses.count(key, batch.texts[at], repeat=repeat)
        if finding is None:
            self.num_accepted += 1
            self.num_supervised_tokens += size
            return
        self._reject(batch, at, size, finding)

    def count_all(self, batch: CandidateBatch, found: Mapping[int, Finding]) -> None:
        """Enter all samples of the batch at once; the outcome is that of `count` for each."""
        sizes = batch.sizes.tolist()
        self.num_seen += len(batch)
        self.num_accepted += len(batch) - len(found)
        self.mask_sums.update(sizes)
        self.num_supervised_tokens += sum(sizes) - sum(sizes[at] for at in found)
        for at in sorted(found):
            self._reject(batch, at, sizes[at], found[at])
        answered = [at for at, text in enumerate(batch.texts) if text is not None]
        if batch.unit == "token":
            answered = list(range(len(batch)))
        repeats = {at for at, one in found.items() if one.reason is Reason.EXACT_DUPLICATE}
        self.responses.count_all(batch.response_keys, answered, batch.texts, repeats)

    def commit(self) -> None:
        """The batch, or as much of it as was counted, is over."""
        self.responses.commit()

    def _reject(self, batch: CandidateBatch, at: int, size: int, finding: Finding) -> None:
        self.rejected[finding.reason] += 1
        kept = self.examples.setdefault(finding.reason, [])
        if len(kept) < _NUM_EXAMPLES:
            kept.append(
                {
                    "seq": batch.seqs[at],
                    "source": batch.sources[at] if batch.sources else None,
                    "prompt_sha256": batch.prompt_sha256[at],
                    "num_supervised_tokens": size,
                    "detail": finding.detail,
                    "text": _excerpt(batch.texts[at]),
                }
            )

    def verdict(self) -> Verdict:
        """The shares so far against the limits."""
        top = self.responses.top
        return judge_shares(
            self.gates,
            num_seen=self.num_seen,
            rejected=self.rejected,
            same_response=top.count,
            same_response_text=top.text[:40],
            same_response_repeats=self.responses.top_repeats,
        )

    def report(self) -> dict[str, Any]:
        """The report as plain JSON; the same for a run and for `data check`."""
        seen = max(self.num_seen, 1)
        verdict = self.verdict()
        top = self.responses.top
        rejected = self.num_seen - self.num_accepted
        mask_sum, mask_count = max(
            self.mask_sums.items(), key=lambda item: (item[1], -item[0]), default=(0, 0)
        )
        return {
            "unit": "token" if self.unit == "token" else "character",
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
                "text": _excerpt(top.text) or "",
                "count": top.count,
                "share": top.count / seen,
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
