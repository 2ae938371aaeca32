"""The gates of a run as one object: judge candidates in order, and say whether to block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shared.config.schema import GateSection
from shared.gates.checks import Findings, SampleChecks
from shared.gates.duplicates import Comparison, Duplicate, DuplicateIndex
from shared.gates.ledger import GateLedger
from shared.gates.reasons import Reason
from shared.gates.sample import Candidate, CandidateBatch, Finding, GateTokens, Unit
from shared.gates.window import Verdict, window_size


@dataclass(frozen=True)
class Judgement:
    """The verdict on one sample; `reason` None means accepted."""

    reason: Reason | None
    detail: str = ""

    @property
    def accepted(self) -> bool:
        return self.reason is None


ACCEPTED = Judgement(None)


class Gatekeeper:
    """State of the gates: duplicates seen and counts.

    Invariant: state and judgements depend only on the candidates judged and their order, not on
    how they are grouped into batches.
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
        return self.judge_batch(CandidateBatch.of([sample]))[0]

    def judge_batch(
        self, batch: CandidateBatch, each: Callable[[int, Judgement], bool] | None = None
    ) -> list[Judgement]:
        """Accept or reject the next candidates in order, and count them.

        `each` is called after each sample has been counted, with its position and judgement; when
        it answers True, the rest of the batch is left alone, as if it had not been given.
        """
        found = self._checks.findings(batch)
        usable = np.ones(len(batch), bool)
        usable[list(found)] = False
        compared = self._duplicates.compare(
            batch.content_keys, batch.seqs, batch.units, batch.offsets, usable
        )
        for at, duplicate in enumerate(compared.found):
            if duplicate is not None:
                found[at] = _finding(duplicate, batch.unit)
        return self._count(batch, found, compared, each)

    def _count(
        self,
        batch: CandidateBatch,
        found: Findings,
        compared: Comparison,
        each: Callable[[int, Judgement], bool] | None,
    ) -> list[Judgement]:
        judgements = [ACCEPTED] * len(batch)
        for at, finding in found.items():
            judgements[at] = Judgement(finding.reason, finding.detail)
        counted = len(batch)
        self.ledger.begin(batch)
        try:
            if each is None:
                self.ledger.count_all(batch, found)
            else:
                counted = 0
                keys, sizes = batch.response_keys.tolist(), batch.sizes.tolist()
                for at, judgement in enumerate(judgements):
                    self.ledger.count(batch, at, keys[at], sizes[at], found.get(at))
                    counted += 1
                    if each(at, judgement):
                        break
        finally:  # whatever `each` raises, counts and duplicates tell of the same samples
            self.ledger.commit()
            accepted = np.ones(counted, bool)
            accepted[[at for at in found if at < counted]] = False
            self._duplicates.add(compared, np.flatnonzero(accepted))
        return judgements[:counted]

    @property
    def memory_bytes(self) -> int:
        """What the gates remember of accepted samples and answers, in bytes."""
        return self._duplicates.num_bytes + self.ledger.responses.num_bytes

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


def _finding(duplicate: Duplicate, unit: Unit) -> Finding:
    same, name = ("tokens", "completion") if unit == "token" else ("text", "sample")
    if duplicate.similarity is None:
        return Finding(Reason.EXACT_DUPLICATE, f"same {same} as {name} {duplicate.seq}")
    return Finding(
        Reason.NEAR_DUPLICATE, f"similarity {duplicate.similarity:.2f} to {name} {duplicate.seq}"
    )
