"""A circuit breaker: leaves a failing server alone, and finds out with one request that it is back.

    CLOSED --failures in a row--> OPEN --rest is over, one probe--> HALF_OPEN --success--> CLOSED
                                   ^------ failure: the next rest is twice as long ---|

Pure: time is given. Invariant: at most one probe is under way.
"""

from __future__ import annotations

from enum import StrEnum


class Circuit(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """The state of one server, times in seconds of any steady clock."""

    def __init__(self, *, max_failures: int, backoff_s: float, max_backoff_s: float) -> None:
        self._max_failures = max_failures
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._num_failures = 0
        self._num_rests = 0
        self.state = Circuit.CLOSED
        self.retry_at_s = 0.0

    def admits(self, now_s: float) -> bool:
        """Whether a request may go now; `begin` must follow before any other call."""
        if self.state is Circuit.OPEN:
            return now_s >= self.retry_at_s
        return self.state is Circuit.CLOSED

    def begin(self, now_s: float) -> bool:
        """A request goes; True when it is the probe."""
        assert self.admits(now_s)
        if self.state is Circuit.OPEN:
            self.state = Circuit.HALF_OPEN
            return True
        return False

    def succeed(self) -> None:
        """Any answer of the server; even one that was asked for before it failed."""
        self.state = Circuit.CLOSED
        self._num_failures = self._num_rests = 0

    def fail(self, now_s: float, *, is_probe: bool) -> bool:
        """A failure; True when the server is left alone from now on.

        What was under way when the circuit opened says nothing new.
        """
        if self.state is Circuit.CLOSED:
            self._num_failures += 1
            if self._num_failures < self._max_failures:
                return False
        elif not is_probe:
            return False
        rest_s = min(self._backoff_s * 2**self._num_rests, self._max_backoff_s)
        self._num_rests += 1
        self.state = Circuit.OPEN
        self.retry_at_s = now_s + rest_s
        return True

    def abandon(self, now_s: float, *, is_probe: bool) -> None:
        """A request was given up without a verdict: if it was the probe, another may go."""
        if is_probe and self.state is Circuit.HALF_OPEN:
            self.state = Circuit.OPEN
            self.retry_at_s = now_s
