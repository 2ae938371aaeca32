"""Plain heartbeats, which are nearly all: kept in memory and written together, once a second.

    heartbeat without facts, state and endpoints as before -> answer of the last one, row later
    any other heartbeat                                    -> one transaction (registry.py)

The run's task flushes before it looks, so a lease is judged by what has arrived; a kill of the
control plane loses at most a second of figures, which the next heartbeats bring again. When a
worker was heard is kept here, on the monotonic clock: leases go by it, so neither a database that
cannot be written nor a clock that is set makes a worker silent. An answer
may be given again as long as nobody has changed anything about the run: whoever does calls
`forget`, after the change is committed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, update
from sqlmodel import Session, col

from control_plane.store import Database
from control_plane.store.tables import Worker
from shared.api.workers import Heartbeat, HeartbeatAnswer
from shared.errors import DatabaseFault

_STORE = (
    update(Worker)
    .where(
        col(Worker.id) == bindparam("own_id"),
        col(Worker.ended_at).is_(None),
        col(Worker.heartbeat_seq) <= bindparam("heartbeat_seq"),
    )
    .values(
        {
            name: bindparam(name)
            for name in (
                "heartbeat_at",
                "heartbeat_seq",
                "progress",
                "metrics",
                "queues",
                "waits_for",
            )
        }
    )
    .execution_options(synchronize_session=False)
)


@dataclass(frozen=True)
class _Known:
    run_id: str
    incarnation: str
    state: str
    endpoints: dict[str, str]
    last_error: str | None
    answer: HeartbeatAnswer


class HeartbeatBook:
    """Last answers by worker, and heartbeats that are still to be written."""

    def __init__(
        self, database: Database, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._monotonic = monotonic
        self._arrivals: defaultdict[str, dict[str, float]] = defaultdict(dict)
        self._known: dict[str, _Known] = {}
        self._pending: dict[str, dict[str, Any]] = {}
        self._changes: defaultdict[str, int] = defaultdict(int)

    def hear(self, run_id: str, worker_id: str) -> None:
        """A worker that is known has spoken, whether or not what it says can be stored."""
        self._arrivals[run_id][worker_id] = self._monotonic()

    def arrivals(self, run_id: str) -> Mapping[str, float]:
        """When each worker of the run was heard last, on the monotonic clock."""
        return self._arrivals[run_id]

    def close_run(self, run_id: str) -> None:
        """Nobody looks after the run any more: forget what was heard of it."""
        self._arrivals.pop(run_id, None)

    def changes_of(self, run_id: str) -> int:
        """Grows with every `forget`: ask before a transaction, give it to `remember`."""
        return self._changes[run_id]

    def repeat(self, worker_id: str, beat: Heartbeat, *, now: float) -> HeartbeatAnswer | None:
        """The last answer, if this heartbeat brings figures only; else None."""
        known = self._known.get(worker_id)
        if (
            known is None
            or beat.events
            or beat.incarnation != known.incarnation
            or beat.state.value != known.state
            or beat.endpoints != known.endpoints
            or (beat.last_error or known.last_error) != known.last_error
        ):
            return None
        self.hear(known.run_id, worker_id)
        self._pending[worker_id] = {
            "own_id": worker_id,
            "heartbeat_at": now,
            "heartbeat_seq": beat.seq,
            "progress": dict(beat.progress),
            "metrics": dict(beat.metrics),
            "queues": [queue.model_dump() for queue in beat.queues],
            "waits_for": beat.waits_for,
        }
        return known.answer

    def remember(self, worker: Worker, answer: HeartbeatAnswer, *, changes: int) -> None:
        """Keep the answer of a transaction, unless the run has changed since it began."""
        self._pending.pop(worker.id, None)  # older than what was just written
        if changes == self._changes[worker.run_id]:
            self._known[worker.id] = _Known(
                worker.run_id,
                worker.incarnation,
                worker.state,
                dict(worker.endpoints),
                worker.last_error,
                answer,
            )

    def forget(self, run_id: str) -> None:
        """Something about the run has changed: every worker gets a fresh answer."""
        self._changes[run_id] += 1
        for worker_id in [w for w, known in self._known.items() if known.run_id == run_id]:
            del self._known[worker_id]

    async def flush(self) -> None:
        """Write what is pending; on a fault it stays pending."""
        if not self._pending:
            return
        taken, self._pending = self._pending, {}
        try:
            await self._database.write(_store, list(taken.values()))
        except DatabaseFault:
            self._pending = {**taken, **self._pending}
            raise


def _store(session: Session, rows: list[dict[str, Any]]) -> None:
    session.connection().execute(_STORE, rows)
