"""Requests in flight: a limit that may change while they run, and how much comes of it.

    spawn --acquire--> RequestSlots --release(tokens)--> ThroughputWindow -> controller -> limit

After a change of the limit the window lets one full set of requests pass, since those that end
first were started under the old limit, then measures over another full set and over at least some
seconds.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable

from workers.generator.concurrency import ConcurrencyController, Measurement

logger = logging.getLogger(__name__)
_SHORTEST_MEASUREMENT_S = 2.0
_OTHER_FILES = 128


def affordable_requests(wanted: int) -> int:
    """`wanted`, or fewer where the limit of open files leaves no connection for each of them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or wanted <= soft - _OTHER_FILES:
        return wanted
    most = max(1, soft - _OTHER_FILES)
    logger.warning(
        "generator.concurrency is %d, but this process may have %d files open (ulimit -n): at most "
        "%d requests at once",
        wanted,
        soft,
        most,
    )
    return most


class ThroughputWindow:
    """Measures tokens per second at one limit. Pure but for the times it is given, in seconds."""

    def __init__(self, limit: int, now_s: float) -> None:
        self._in_flight = 0
        self.restart(limit, now_s)

    def restart(self, limit: int, now_s: float, *, settled: bool = False) -> None:
        """Measure anew; `settled`: the limit is what it was, so there is nothing to let pass."""
        self._limit = limit
        self._num_to_pass = 0 if settled else limit
        self._num_ended = self._num_tokens = 0
        self._area = 0.0
        self._since_s = self._at_s = now_s

    def change(self, in_flight: int, now_s: float) -> None:
        """The number of requests in flight is another from now on."""
        self._area += self._in_flight * (now_s - self._at_s)
        self._in_flight, self._at_s = in_flight, now_s

    def end(self, num_tokens: int, now_s: float) -> Measurement | None:
        """A request has given `num_tokens`; a measurement when the window is full."""
        if self._num_to_pass:
            self._num_to_pass -= 1
            if not self._num_to_pass:
                self.restart(self._limit, now_s, settled=True)
            return None
        self._num_ended += 1
        self._num_tokens += num_tokens
        elapsed_s = now_s - self._since_s
        if self._num_ended < self._limit or elapsed_s < _SHORTEST_MEASUREMENT_S:
            return None
        area = self._area + self._in_flight * (now_s - self._at_s)
        return Measurement(self._num_tokens / elapsed_s, area / elapsed_s)


class RequestSlots:
    """At most `limit` requests at once; who waits for a slot is woken by a release or a raise."""

    def __init__(self, controller: ConcurrencyController, clock: Callable[[], float]) -> None:
        self._controller = controller
        self._clock = clock
        self._window = ThroughputWindow(controller.limit, clock())
        self._freed = asyncio.Event()
        self.in_flight = 0

    @property
    def limit(self) -> int:
        return self._controller.limit

    async def acquire(self) -> None:
        """Wait until another request may go, and count it."""
        while self.in_flight >= self.limit:
            self._freed.clear()
            await self._freed.wait()
        self._count(1)

    def release(self, num_tokens: int | None) -> None:
        """A request has ended, with `num_tokens` or (None) without an answer."""
        self._count(-1)
        if num_tokens is not None:
            now_s = self._clock()
            seen = self._window.end(num_tokens, now_s)
            if seen is not None:
                before = self.limit
                after = self._controller.observe(seen)
                self._window.restart(after, now_s, settled=after == before)
        self._freed.set()

    def forget(self) -> None:
        """What is being measured is worth nothing: there was a pause."""
        self._window.restart(self.limit, self._clock())

    def _count(self, change: int) -> None:
        self.in_flight += change
        self._window.change(self.in_flight, self._clock())
