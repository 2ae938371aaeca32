"""A worker's conversation with the control plane, from registration to leaving.

    register -> [heartbeat every heartbeat_s, or at once when there is something urgent]* -> leave

The answer carries what is wanted (`desired`), the peers, and how many events are stored. While the
control plane is away the worker works on; after `orphan_grace_s` without an answer it drains. A
control plane that has forgotten the worker gets a registration of the same incarnation again. A
superseded worker, or one that is told to exit, ends at once (`WorkerDismissed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import psutil

from services.control_plane import ControlPlaneClient
from shared.api.workers import Heartbeat, HeartbeatAnswer, WorkerLease, WorkerRegistration
from shared.errors import MeshError, NotFoundError, SupersededError
from shared.states import DesiredState
from workers.runtime.context import WorkerContext
from workers.runtime.meter import meter_metrics

logger = logging.getLogger(__name__)

REGISTRATION_PATIENCE_S = 120.0
FLUSH_PATIENCE_S = 10.0
ORPHAN_PATIENCE_S = 2.0
MAX_EVENTS_IN_HEARTBEAT = 500
# While a role waits for a peer it asks this often, so that a start takes no heartbeats.
ASKING_INTERVAL_S = 0.2
_MIN_INTERVAL_S = 0.05
_MAX_BACKOFF_S = 2.0


class WorkerDismissed(Exception):
    """The control plane wants this incarnation gone now; not an error of the worker."""


async def register(client: ControlPlaneClient, registration: WorkerRegistration) -> WorkerLease:
    """Register, trying again for two minutes while the control plane cannot be reached.

    Raises WorkerDismissed when a newer incarnation holds the lease; MeshError for other answers.
    """
    deadline_s = time.monotonic() + REGISTRATION_PATIENCE_S
    backoff_s = 0.2
    while True:
        try:
            return await client.register(registration)
        except SupersededError as error:
            raise WorkerDismissed(str(error)) from error
        except MeshError as error:
            if not error.retryable or time.monotonic() + backoff_s > deadline_s:
                raise
            logger.warning("registration is tried again in %.1f s: %s", backoff_s, error)
        await asyncio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)


class Session:
    """Heartbeats of one registered worker."""

    def __init__(
        self,
        client: ControlPlaneClient,
        registration: WorkerRegistration,
        context: WorkerContext,
    ) -> None:
        self._client = client
        self._registration = registration
        self._context = context
        self._seq = 0
        self._answered_s = time.monotonic()
        self._is_answered = True
        self._process = psutil.Process()

    async def run(self) -> None:
        """Beat until cancelled; raises WorkerDismissed when this incarnation must go."""
        context = self._context
        supervision = context.config.supervision
        while True:
            await self._beat()
            if time.monotonic() - self._answered_s > supervision.orphan_grace_s:
                if not context.draining.is_set():
                    logger.warning(
                        "no control plane for %.0f s: this worker drains and exits",
                        supervision.orphan_grace_s,
                    )
                context.drain()
            interval_s = supervision.heartbeat_s
            if context.num_waiting_for_peers:
                interval_s = min(interval_s, ASKING_INTERVAL_S)
            await asyncio.sleep(min(_MIN_INTERVAL_S, interval_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await context.beat_wanted.wait()

    async def close(self, reason: str | None) -> None:
        """Deliver the events that are left and, with a reason, leave the registry.

        Gives up after ten seconds without an answer, or two when there has been none for a while:
        what matters lies on the disk as well.
        """
        patience_s = FLUSH_PATIENCE_S if self._is_answered else ORPHAN_PATIENCE_S
        try:
            async with asyncio.timeout(patience_s):
                await self._beat()
                while self._context.pending_events(1) or not self._is_answered:
                    await asyncio.sleep(ASKING_INTERVAL_S)
                    await self._beat()
                if reason is not None:
                    await self._client.leave(self._context.worker_id, reason)
        except (TimeoutError, MeshError) as error:
            logger.warning("left without telling the control plane: %s", error or "no answer")
        except WorkerDismissed:
            logger.info("dismissed while leaving")

    async def _beat(self) -> None:
        context = self._context
        context.beat_wanted.clear()
        heartbeat = self._heartbeat()
        answer: HeartbeatAnswer | None
        try:
            answer = await self._client.heartbeat(context.worker_id, heartbeat)
        except SupersededError as error:
            raise WorkerDismissed(str(error)) from error
        except NotFoundError:
            answer = await self._register_again()
        except MeshError as error:
            if self._is_answered:
                logger.warning("no answer to a heartbeat: %s", error)
            self._is_answered = False
            return
        if answer is None:
            return
        if not self._is_answered:
            logger.info("the control plane answers again")
        self._is_answered = True
        self._answered_s = time.monotonic()
        context.acknowledge(answer.acked_events)
        context.take_answer(answer.desired, answer.peers, answer.overrides)
        if answer.desired is DesiredState.EXIT:
            raise WorkerDismissed("the control plane wants this worker to exit")

    async def _register_again(self) -> HeartbeatAnswer | None:
        """After the registry has lost this worker: same incarnation, so the same id."""
        try:
            lease = await self._client.register(self._registration)
        except (SupersededError, NotFoundError) as error:
            raise WorkerDismissed(str(error)) from error
        except MeshError as error:
            logger.warning("the registry does not know this worker any more: %s", error)
            self._is_answered = False
            return None
        if lease.worker_id != self._context.worker_id:
            raise WorkerDismissed(f"registered anew as {lease.worker_id}")
        return HeartbeatAnswer(desired=lease.desired, peers=lease.peers, acked_events=0)

    def _heartbeat(self) -> Heartbeat:
        context = self._context
        reading = context.meter.reading()
        metrics = {
            **meter_metrics(context.role, reading),
            "rss_bytes": float(self._process.memory_info().rss),
            **context.metrics,
        }
        self._seq += 1
        return Heartbeat(
            incarnation=context.incarnation,
            seq=self._seq,
            state=context.state,
            endpoints=dict(context.endpoints),
            progress=dict(context.progress),
            metrics=metrics,
            queues=[report() for report in context.queues.values()],
            waits_for=reading.waits_for,
            last_error=context.last_error,
            events=context.pending_events(MAX_EVENTS_IN_HEARTBEAT),
        )
