"""What a worker has done and what it waited for, over the last minute.

A role counts tokens and marks the time it is busy or waits for another role; the heartbeat reads
a snapshot. Time marked by several tasks at once counts once. Any thread may call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shared.states import Role

SHARE_WINDOW_S = 60.0
RATE_WINDOW_S = 20.0
# A wait below this share of the window is noise, not a bottleneck.
NOTABLE_WAIT_SHARE = 0.05

_PIPELINE = (
    Role.GENERATOR,
    Role.BATCHER,
    Role.TARGET_FORWARD,
    Role.DRAFTER_TRAINER,
    Role.EVALUATOR,
    Role.ARCHIVER,
)


@dataclass(frozen=True)
class MeterReading:
    """A snapshot; shares are fractions of the last minute, or of the time since the start."""

    tokens_total: int
    tokens_per_s: float
    busy_share: float
    wait_shares: dict[Role, float]

    @property
    def waits_for(self) -> Role | None:
        """The role waited for most, if the wait is worth a word."""
        if not self.wait_shares:
            return None
        role, share = max(self.wait_shares.items(), key=lambda item: item[1])
        return role if share >= NOTABLE_WAIT_SHARE else None


class _Window:
    """Sum of amounts over a sliding window of equal buckets."""

    def __init__(self, window_s: float, num_buckets: int = 60) -> None:
        self.window_s = window_s
        self._bucket_s = window_s / num_buckets
        self._amounts = [0.0] * num_buckets
        self._stamps = [-1] * num_buckets

    def add(self, at_s: float, amount: float) -> None:
        stamp = int(at_s / self._bucket_s)
        slot = stamp % len(self._amounts)
        if self._stamps[slot] != stamp:
            self._stamps[slot], self._amounts[slot] = stamp, 0.0
        self._amounts[slot] += amount

    def add_interval(self, start_s: float, end_s: float) -> None:
        """Spread `end_s - start_s` over the buckets it covers."""
        start_s = max(start_s, end_s - self.window_s)
        while start_s < end_s:
            border_s = min(end_s, (int(start_s / self._bucket_s) + 1) * self._bucket_s)
            if border_s <= start_s:  # float rounding at a bucket's border
                border_s = end_s
            self.add(start_s, border_s - start_s)
            start_s = border_s

    def total(self, now_s: float) -> float:
        newest = int(now_s / self._bucket_s)
        oldest = newest - len(self._amounts)
        pairs = zip(self._stamps, self._amounts, strict=True)
        return sum(amount for stamp, amount in pairs if oldest < stamp <= newest)


class _Stopwatch:
    """Time during which at least one caller is inside."""

    def __init__(self) -> None:
        self._window = _Window(SHARE_WINDOW_S)
        self._num_inside = 0
        self._since_s = 0.0

    def enter(self, now_s: float) -> None:
        if self._num_inside == 0:
            self._since_s = now_s
        self._num_inside += 1

    def leave(self, now_s: float) -> None:
        self._num_inside -= 1
        if self._num_inside == 0:
            self._window.add_interval(self._since_s, now_s)

    def total_s(self, now_s: float) -> float:
        if self._num_inside:
            self._window.add_interval(self._since_s, now_s)
            self._since_s = now_s
        return self._window.total(now_s)


class Meter:
    """Counts tokens, busy time and waiting time of one worker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_s = clock()
        self._lock = threading.Lock()
        self._tokens_total = 0
        self._tokens = _Window(RATE_WINDOW_S)
        self._busy = _Stopwatch()
        self._waits: dict[Role, _Stopwatch] = {}

    def count_tokens(self, num_tokens: int) -> None:
        """Add tokens that the worker has just finished."""
        with self._lock:
            self._tokens_total += num_tokens
            self._tokens.add(self._clock(), num_tokens)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Marks the time inside as work."""
        with self._inside(self._busy):
            yield

    @contextmanager
    def waiting_for(self, role: Role) -> Iterator[None]:
        """Marks the time inside as waiting for `role`: for its input, or for its credit."""
        with self._lock:
            stopwatch = self._waits.setdefault(role, _Stopwatch())
        with self._inside(stopwatch):
            yield

    def reading(self) -> MeterReading:
        """The state now; waits and work in progress count up to this moment."""
        with self._lock:
            now_s = self._clock()
            elapsed_s = max(now_s - self._started_s, 1e-9)
            share_s = min(elapsed_s, SHARE_WINDOW_S)
            rate_s = max(min(elapsed_s, RATE_WINDOW_S), 1.0)
            return MeterReading(
                tokens_total=self._tokens_total,
                tokens_per_s=self._tokens.total(now_s) / rate_s,
                busy_share=min(self._busy.total_s(now_s) / share_s, 1.0),
                wait_shares={
                    role: min(watch.total_s(now_s) / share_s, 1.0)
                    for role, watch in self._waits.items()
                },
            )

    @contextmanager
    def _inside(self, stopwatch: _Stopwatch) -> Iterator[None]:
        with self._lock:
            stopwatch.enter(self._clock())
        try:
            yield
        finally:
            with self._lock:
                stopwatch.leave(self._clock())


def meter_metrics(role: Role, reading: MeterReading) -> dict[str, float]:
    """The reading as heartbeat metrics; a wait for an earlier role of the pipeline is for input."""
    own = _PIPELINE.index(role)
    waits = reading.wait_shares.items()
    metrics = {
        "tokens_total": float(reading.tokens_total),
        "tokens_per_s": reading.tokens_per_s,
        "busy_share": reading.busy_share,
        "wait_input_share": sum(s for r, s in waits if _PIPELINE.index(r) < own),
        "wait_output_share": sum(s for r, s in waits if _PIPELINE.index(r) > own),
    }
    if reading.waits_for is not None:
        metrics["waits_for_share"] = reading.wait_shares[reading.waits_for]
    return metrics
