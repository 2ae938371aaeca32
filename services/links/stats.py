"""What an end of a link reports about one direction."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from shared.api.workers import QueueReport

Direction = Literal["sent", "received"]


@dataclass(frozen=True)
class LinkStats:
    """Depth in messages and frame bytes against the credit, totals, and waiting.

    `depth` and `bytes` count messages that the receiving end has not released. `wait_s` is the
    time spent waiting: for credit when sending, for a message when receiving. `active_s` spans
    the first to the last message.
    """

    depth: int
    capacity: int
    bytes: int
    capacity_bytes: int
    messages_total: int
    bytes_total: int
    wait_s: float
    active_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_total / self.active_s if self.active_s else 0.0

    def queue_report(self, name: str) -> QueueReport:
        """The part that goes into a heartbeat."""
        return QueueReport(
            name=name,
            depth=self.depth,
            capacity=self.capacity,
            bytes=self.bytes,
            capacity_bytes=self.capacity_bytes,
        )


def add_up(stats: Iterable[LinkStats]) -> LinkStats:
    """One LinkStats for several channels; `active_s` is the longest."""
    every = list(stats)
    return LinkStats(
        depth=sum(s.depth for s in every),
        capacity=sum(s.capacity for s in every),
        bytes=sum(s.bytes for s in every),
        capacity_bytes=sum(s.capacity_bytes for s in every),
        messages_total=sum(s.messages_total for s in every),
        bytes_total=sum(s.bytes_total for s in every),
        wait_s=sum(s.wait_s for s in every),
        active_s=max((s.active_s for s in every), default=0.0),
    )


class Meter:
    """Totals of one direction; `waiting` counts a wait that is still going on."""

    def __init__(self) -> None:
        self.messages_total = 0
        self.bytes_total = 0
        self._waited_s = 0.0
        self._waiting_since: float | None = None
        self._first = self._last = 0.0

    def count(self, num_bytes: int) -> None:
        self._last = time.monotonic()
        if not self.messages_total:
            self._first = self._last
        self.messages_total += 1
        self.bytes_total += num_bytes

    def __enter__(self) -> Meter:
        self._waiting_since = time.monotonic()
        return self

    def __exit__(self, *exc: object) -> None:
        self._waited_s = self.wait_s
        self._waiting_since = None

    @property
    def wait_s(self) -> float:
        if self._waiting_since is None:
            return self._waited_s
        return self._waited_s + time.monotonic() - self._waiting_since

    @property
    def active_s(self) -> float:
        return self._last - self._first
