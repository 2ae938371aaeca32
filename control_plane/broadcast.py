"""From whoever changes something to every open event stream.

    Database.on_events --stored events--> Broadcaster --bounded queue--> stream of each client
    Controller         --live values----> publish

Invariants: publishing never waits; a client whose queue is full is dropped (its stream ends and
the browser comes back with Last-Event-ID, so it misses no stored event); everything happens on
the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from control_plane.store.tables import Event

log = logging.getLogger(__name__)

QUEUE_EVENTS = 256


@dataclass(frozen=True)
class StreamEvent:
    """One server-sent event; `id` is set for stored ones only. `data` is plain JSON values."""

    name: str
    data: Any
    id: int | None = None


class Subscription:
    """A client's view of one run's events, until it is dropped or all is closed."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[StreamEvent] = asyncio.Queue(QUEUE_EVENTS)
        self._ended = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Dropped or closed, and everything that came before was taken."""
        return self._ended.is_set() and self._queue.empty()

    async def next(self, timeout_s: float) -> StreamEvent | None:
        """The next event; None when there is none within the time, or the end has come."""
        if not self._queue.empty():
            return self._queue.get_nowait()
        getter = asyncio.ensure_future(self._queue.get())
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait(
                {getter, ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            return getter.result() if getter.done() else None
        finally:
            getter.cancel()
            ended.cancel()

    def offer(self, event: StreamEvent) -> bool:
        """Queue an event; False when the client is too slow."""
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            return False
        return True

    def end(self) -> None:
        self._ended.set()


class Broadcaster:
    """Hands events of runs to their subscriptions."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, set[Subscription]] = {}
        self._closed = False

    def has_listeners(self, run_id: str) -> bool:
        """Whether making a live event for this run is worth the work."""
        return bool(self._subscriptions.get(run_id))

    def subscribe(self, run_id: str) -> Subscription:
        """Start to collect a run's events; end with `unsubscribe`."""
        subscription = Subscription()
        if self._closed:
            subscription.end()
        else:
            self._subscriptions.setdefault(run_id, set()).add(subscription)
        return subscription

    def unsubscribe(self, run_id: str, subscription: Subscription) -> None:
        known = self._subscriptions.get(run_id, set())
        known.discard(subscription)
        if not known:
            self._subscriptions.pop(run_id, None)

    def publish(self, run_id: str, event: StreamEvent) -> None:
        """Hand an event to every subscription of the run, without waiting."""
        for subscription in list(self._subscriptions.get(run_id, ())):
            if not subscription.offer(event):
                log.warning("an event stream of run %s is too slow and was closed", run_id)
                subscription.end()
                self.unsubscribe(run_id, subscription)

    def publish_stored(self, events: Iterable[Event]) -> None:
        """For `Database.on_events`: events that were just committed."""
        for event in events:
            self.publish(event.run_id, StreamEvent(event.name, event.data, event.id))

    def close(self) -> None:
        """End every stream, and every later one at once."""
        self._closed = True
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.end()
        self._subscriptions.clear()
