"""What a role sees of the mesh: its lease, its peers, what is wanted of it, and what it reports.

The session (session.py) writes `desired` and the peers from heartbeat answers and sends what the
role leaves here: state, progress, metrics, queues, endpoints and events. All of it belongs to the
worker's event loop; only `emit`, `milestone` and the meter may be called from other threads.

Invariants: an event keeps its number and stays queued until the control plane has acknowledged
it; `draining` is set once and never cleared; `desired` PAUSE never empties anything.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.links import LinkIdentity, LinkSecurity
from shared.api.events import (
    CheckpointSaved,
    EvaluationDone,
    ExportProgress,
    GateReport,
    LogLine,
    WorkerEvent,
    WorkerFailed,
)
from shared.api.workers import Peer, QueueReport, WorkerLease
from shared.config import RunConfig
from shared.errors import MeshError
from shared.layout import RunFolder
from shared.states import DesiredState, Role, WorkerState
from workers.runtime.meter import Meter

logger = logging.getLogger(__name__)
# Events that somebody waits for: they leave with a heartbeat of their own, at once.
_URGENT = (GateReport, WorkerFailed, EvaluationDone, CheckpointSaved, ExportProgress)


class WorkerContext:
    """One incarnation of a worker. Made by the session after registration.

    `progress` and `metrics` are written by the role and sent with every heartbeat; `endpoints`
    are the addresses of its listeners; `job` is the export or evaluation of a job worker;
    `device` is 'auto', 'cpu' or the name torch knows the device by in this process.
    """

    def __init__(
        self,
        lease: WorkerLease,
        identity: LinkIdentity,
        *,
        device: str = "auto",
        announce: Callable[[Path, str], None] | None = None,
    ) -> None:
        self.identity = identity
        self.run_id = identity.run_id
        self.role = Role(identity.role)
        self.rank = identity.rank
        self.worker_id = identity.worker_id
        self.incarnation = identity.incarnation
        self.device = device
        self.config = RunConfig.model_validate(lease.config)
        self.folder = RunFolder(Path(lease.run_folder))
        self.job: dict[str, Any] | None = lease.job
        self.security = (
            LinkSecurity.from_keys(lease.link_keys) if lease.link_keys is not None else None
        )
        self.progress: dict[str, int] = {}
        self.metrics: dict[str, float] = {}
        self.endpoints: dict[str, str] = {}
        self.meter = Meter()
        self.draining = asyncio.Event()
        self.overrides: list[str] = []
        self.beat_wanted = asyncio.Event()
        self.num_waiting_for_peers = 0
        self.last_error: str | None = None
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._state = WorkerState.STARTING
        self._num_held = 0
        self._desired = lease.desired
        self._desired_changed = asyncio.Event()
        self._peers = list(lease.peers)
        self._peers_changed = asyncio.Event()
        self._overrides_changed = asyncio.Event()
        self._queues: dict[str, Callable[[], QueueReport]] = {}
        self._events: deque[WorkerEvent] = deque()
        self._next_event = 0
        self._events_lock = threading.Lock()
        if lease.desired is DesiredState.DRAIN:
            self.draining.set()

    # what the role reports

    @property
    def state(self) -> WorkerState:
        """What the next heartbeat says: the role's own state, unless it holds or drains."""
        if self._state in (WorkerState.EXITED, WorkerState.FAILED):
            return self._state
        if self.draining.is_set():
            return WorkerState.DRAINING
        return WorkerState.PAUSED if self._num_held else self._state

    def set_state(self, state: WorkerState) -> None:
        """Report `state` at once: RUNNING when the links listen, FINISHED when the work is done."""
        if state is not self._state:
            self._state = state
            self.beat_wanted.set()

    def emit(self, event: type[Any], **fields: Any) -> None:
        """Queue a fact for the control plane, numbered; urgent ones leave at once."""
        with self._events_lock:
            made: WorkerEvent = event(number=self._next_event, **fields)
            self._next_event += 1
            self._events.append(made)
        if isinstance(made, _URGENT):
            self._loop.call_soon_threadsafe(self.beat_wanted.set)

    def milestone(self, message: str) -> None:
        """A line for the log and for the run's log tail, at level info."""
        logger.info("%s", message)
        self.emit(LogLine, level="info", message=message[:4000], created_at=time.time())

    def add_queue(self, name: str, report: Callable[[], QueueReport]) -> None:
        """Send what `report` says with every heartbeat; one report for each name."""
        self._queues[name] = report

    def announce_file(self, path: Path, kind: str) -> None:
        """Tell the run's archiver, if it has one, that `path` will not change any more.

        `kind` is one of shared.messages.FileClosed.kind.
        """
        if self._announce is not None:
            self._announce(path, kind)

    def fail(self, error: MeshError) -> None:
        """End the worker with `error`, from any task: the role's main is cancelled."""
        if not self.failure.done():
            self.failure.set_exception(error)

    # what the mesh wants

    @property
    def desired(self) -> DesiredState:
        return self._desired

    async def wait_while_paused(self) -> None:
        """Returns at once when the worker may work; else when it may again, or must drain."""
        if self._desired is not DesiredState.PAUSE or self.draining.is_set():
            return
        self._num_held += 1
        self.beat_wanted.set()
        try:
            while self._desired is DesiredState.PAUSE and not self.draining.is_set():
                self._desired_changed.clear()
                await self._desired_changed.wait()
        finally:
            self._num_held -= 1
            self.beat_wanted.set()

    def drain(self) -> None:
        """Ask the role to finish what is in flight, save, and return."""
        if not self.draining.is_set():
            self.draining.set()
            self._desired_changed.set()
            self.beat_wanted.set()

    # peers

    def peers(self, role: Role) -> list[Peer]:
        """Live workers of `role`, by rank."""
        return sorted((p for p in self._peers if p.role is role), key=lambda p: p.rank)

    async def wait_for_peer(self, role: Role, endpoint: str) -> Peer:
        """The first peer of `role` that listens on `endpoint`, once there is one.

        Unblocked by the heartbeat answers; the caller cancels it when it drains.
        """
        async with self._asking_for_peers():
            while True:
                for peer in self.peers(role):
                    if endpoint in peer.endpoints:
                        return peer
                await self.peers_changed()

    async def peers_changed(self) -> None:
        """Returns at the next change of the list of peers."""
        await self._peers_changed.wait()

    async def wait_for_override(self, gate: str) -> None:
        """Returns once a person has overridden `gate`; the caller cancels it when it drains."""
        while gate not in self.overrides:
            self._overrides_changed.clear()
            await self._overrides_changed.wait()

    @asynccontextmanager
    async def _asking_for_peers(self) -> AsyncIterator[None]:
        self.num_waiting_for_peers += 1
        self.beat_wanted.set()
        try:
            yield
        finally:
            self.num_waiting_for_peers -= 1

    # for the session

    def take_answer(self, desired: DesiredState, peers: list[Peer], overrides: list[str]) -> None:
        """Apply a heartbeat answer; wakes whoever waits for a change."""
        if overrides != self.overrides:
            self.overrides = overrides
            self._overrides_changed.set()
        if peers != self._peers:
            self._peers = list(peers)
            self._peers_changed.set()
            self._peers_changed = asyncio.Event()
        if desired is not self._desired:
            self._desired = desired
            self._desired_changed.set()
        if desired is DesiredState.DRAIN:
            self.drain()

    def pending_events(self, limit: int) -> list[WorkerEvent]:
        """The oldest events that are not acknowledged."""
        with self._events_lock:
            return [event for event, _ in zip(self._events, range(limit), strict=False)]

    def acknowledge(self, next_number: int) -> None:
        """Forget the events below `next_number`: the control plane has stored them."""
        with self._events_lock:
            while self._events and self._events[0].number < next_number:
                self._events.popleft()

    @property
    def queues(self) -> Mapping[str, Callable[[], QueueReport]]:
        return self._queues
