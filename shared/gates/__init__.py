"""Quality gates: what makes a sample unusable, and when a run must stop for a person to look.

    Candidate -> checks (one sample) -> duplicates (against accepted ones) -> GateLedger -> report

Pure functions and plain state. Judging the same candidates in the same order always gives the same
verdicts, so a restarted batcher rebuilds its state by judging the log again.
"""

from shared.gates.gatekeeper import Gatekeeper, Judgement
from shared.gates.reasons import Reason
from shared.gates.sample import Candidate, CandidateBatch, GateTokens
from shared.gates.window import window_size

__all__ = [
    "Candidate",
    "CandidateBatch",
    "GateTokens",
    "Gatekeeper",
    "Judgement",
    "Reason",
    "window_size",
]
