"""The gates of a run as one object: judge candidates in order, and say whether to block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared.config.schema import GateSection
from shared.gates.duplicates import DuplicateIndex
from shared.gates.ledger import GateLedger
from shared.gates.reasons import Reason
from shared.gates.sample import Candidate, Finding, GateTokens, SampleChecks
from shared.gates.window import Verdict, window_size


@dataclass(frozen=True)
class Judgement:
    """The verdict on one sample; `reason` None means accepted."""

    reason: Reason | None
    detail: str = ""

    @property
    def accepted(self) -> bool:
        return self.reason is None


class Gatekeeper:
    """State of the gates: duplicates seen and counts.

    Invariant: state and judgements depend only on the candidates judged and their order.
    """

    def __init__(self, gates: GateSection, tokens: GateTokens, *, num_prompts: int) -> None:
        self.gates = gates
        self.window = window_size(gates, num_prompts)
        self.ledger = GateLedger(gates)
        self._checks = SampleChecks(gates, tokens)
        self._duplicates = DuplicateIndex(
            gates.near_duplicate_similarity if gates.near_duplicates else None
        )

    def judge(self, sample: Candidate) -> Judgement:
        """Accept or reject the next candidate, and count it."""
        finding = self._checks.first_finding(sample) or self._duplicate(sample)
        self.ledger.count(sample, finding)
        if finding is not None:
            return Judgement(finding.reason, finding.detail)
        self._duplicates.add(sample.seq, sample.input_ids)
        return Judgement(None)

    @property
    def window_passed(self) -> bool:
        """Whether enough was judged for the shares to mean something."""
        return self.ledger.num_seen >= self.window

    def verdict(self, *, final: bool = False) -> Verdict:
        """Blocked or not; never blocked inside the window, unless nothing more will come."""
        if not self.window_passed and not final:
            return Verdict(False)
        return self.ledger.verdict()

    def report(self) -> dict[str, Any]:
        """The data-quality report, with the window it is judged after."""
        report = self.ledger.report()
        report["window"] = {"size": self.window, "passed": self.window_passed}
        return report

    def _duplicate(self, sample: Candidate) -> Finding | None:
        same = self._duplicates.exact(sample.input_ids)
        if same is not None:
            return Finding(Reason.EXACT_DUPLICATE, f"same tokens as completion {same}")
        near = self._duplicates.near(sample.input_ids)
        if near is not None:
            return Finding(
                Reason.NEAR_DUPLICATE, f"similarity {near[1]:.2f} to completion {near[0]}"
            )
        return None
