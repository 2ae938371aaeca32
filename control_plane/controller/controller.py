"""The controller: what the HTTP routes call, and what makes runs go.

    routes --submit, act, exports, ...--> rows --wake--> task of the run (run_task.py)
    workers --register, heartbeat, leave--> rows --wake--> task of the run
    scheduler: queued --a place is free--> starting, and a task for the run

Invariants: every active run, every live worker and every open job has a task of its run; all state
is in the database, so a controller that starts finds everything again, and one that is killed
loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Literal

from control_plane.broadcast import Broadcaster, StreamEvent
from control_plane.controller import actions, registry
from control_plane.controller.environment import ControllerEnvironment
from control_plane.controller.facts import Effects
from control_plane.controller.figures import point_data
from control_plane.controller.heartbeats import HeartbeatBook
from control_plane.controller.keys import LinkKeyStore
from control_plane.controller.run_file import make_run_folder, write_run_file
from control_plane.controller.run_task import RunTask
from control_plane.controller.verified_files import remove_verified_files
from control_plane.destinations import checked_destination, export_destination, writable_destination
from control_plane.settings import Settings
from control_plane.store import Database, evaluations, exports, runs, workers
from control_plane.store.ids import new_run_id
from control_plane.store.tables import Run, Worker
from services.launchers import Launcher
from shared.api.exports import ExportRequest
from shared.api.runs import EvaluationRequest
from shared.api.workers import Heartbeat, HeartbeatAnswer, WorkerLease, WorkerRegistration
from shared.config import RunConfig
from shared.config.loading import config_sha256
from shared.errors import ConflictError, EnvironmentFault, MeshError, NotFoundError
from shared.states import ACTIVE_STATES, DesiredState, RunAction, RunEvent, RunState

logger = logging.getLogger(__name__)
SCHEDULE_INTERVAL_S = 2.0
# What a shutdown waits for beyond the longest drain deadline of the active runs.
SHUTDOWN_MARGIN_S = 10.0


class Controller:
    """Starts with `start`, ends with `shutdown`. Every method may be called concurrently."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        launcher: Launcher,
        broadcaster: Broadcaster,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._database = database
        self._clock = clock
        self._environment = ControllerEnvironment(
            settings.folder,
            database,
            launcher,
            broadcaster,
            HeartbeatBook(database, monotonic=monotonic),
            clock=clock,
            monotonic=monotonic,
        )
        self._heartbeats = self._environment.heartbeats
        self._keys = LinkKeyStore(settings.data / "link_keys")
        self._tasks: dict[str, tuple[RunTask, asyncio.Task[None]]] = {}
        self._scheduler: asyncio.Task[None] | None = None
        self._queue_changed = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self._shutting_down = False

    async def start(self) -> None:
        """Take up every run where it stands, and begin to schedule."""
        taken_up = await self._database.write(
            actions.take_up, resume=self._settings.resume, now=self._clock()
        )
        for run in taken_up:
            logger.info("takes up run %s (%s)", run.id, run.state)
            self._ensure_task(run)
        self._scheduler = asyncio.create_task(self._schedule(), name="scheduler")

    async def shutdown(self) -> None:
        """Drain every worker, mark running runs paused, and end all tasks; bounded in time.

        Workers hear of it by signal and, while the HTTP side still answers, by heartbeat.
        """
        self._shutting_down = True
        if self._scheduler is not None:
            await _cancel(self._scheduler)
        paused = await self._database.write(actions.pause_for_shutdown, now=self._clock())
        for run in paused:
            logger.info("run %s is paused and drains: control plane shut down", run.id)
        open_tasks = list(self._tasks.values())
        for run_task, _ in open_tasks:
            run_task.begin_shutdown()
        if open_tasks:
            deadline_s = max(r.drain_deadline_s for r, _ in open_tasks) + SHUTDOWN_MARGIN_S
            await asyncio.wait([task for _, task in open_tasks], timeout=deadline_s)
        for _, task in open_tasks:
            await _cancel(task)
        for background in list(self._background):
            await _cancel(background)
        await self._environment.alerts.close()

    # runs

    async def submit(self, config: RunConfig, *, progress: dict[str, Any] | None = None) -> str:
        """Queue a run of a resolved configuration; its id. `progress`: totals known already.

        EnvironmentFault when it has no place on the disk, ConflictError when the queue is full.
        """
        if config.archive.destination is not None:
            checked_destination(self._settings, config.archive.destination)
        now = self._clock()
        run_id = new_run_id(now)
        folder = self._settings.folder.run(run_id)
        await asyncio.to_thread(make_run_folder, folder)
        try:
            run = await self._database.write(
                runs.create,
                run_id=run_id,
                name=config.name,
                config=config.model_dump(mode="json"),
                config_sha256=config_sha256(config),
                progress=progress or {},
                now=now,
                max_queued=self._settings.max_queued_runs,
            )
        except MeshError:
            await asyncio.to_thread(folder.root.rmdir)
            raise
        try:
            await asyncio.to_thread(write_run_file, folder, run)
        except EnvironmentFault as error:  # the run is queued; its task writes the file again
            logger.warning("run %s: %s", run_id, error)
        self._queue_changed.set()
        return run_id

    async def act(
        self, run_id: str, action: RunAction, mode: Literal["drain", "now"] = "drain"
    ) -> Run:
        """Stop, pause or resume a run; the run as it stands then.

        Stopping an ended run changes nothing. Raises NotFoundError, IllegalTransition.
        """
        change = {
            RunAction.STOP: actions.stop,
            RunAction.PAUSE: actions.pause,
            RunAction.RESUME: actions.resume,
        }[action]
        if self._shutting_down:
            raise ConflictError("the control plane is shutting down; try again when it is back")
        run = await self._database.write(change, run_id, mode=mode, now=self._clock())
        self._heartbeats.forget(run_id)
        if run.state != RunState.QUEUED.value:
            task = self._ensure_task(run)
            if action is RunAction.RESUME:
                task.new_attempt()
            task.wake()
        self._queue_changed.set()
        return run

    async def delete_run(self, run_id: str, *, files: bool = False) -> None:
        """Forget an ended run; with `files` also remove those that are verified elsewhere.

        Raises ConflictError while the run, a worker of it or an export lives.
        """
        done = await self._database.write(actions.check_deletable, run_id)
        entry = self._tasks.pop(run_id, None)
        if entry is not None:
            await _cancel(entry[1])
        if files:
            folder = self._settings.folder.run(run_id)
            await remove_verified_files(folder, done)
        await self._database.write(runs.delete, run_id)
        self._keys.forget(run_id)

    # jobs

    async def start_export(self, run_id: str, request: ExportRequest) -> str:
        """Queue an export; without a destination it goes to the run's own store.

        Raises UserError or ForbiddenPathError for a destination that cannot be, ConflictError or
        NotFoundError when it needs checkpoints that are not there.
        """
        run = await self._database.read(runs.get, run_id)
        destination = export_destination(self._settings, run, request.destination)
        await self._database.read(actions.check_exportable, run_id, request)
        await asyncio.to_thread(writable_destination, self._settings, destination)
        export = await self._database.write(
            exports.create, run_id, request, destination=destination, now=self._clock()
        )
        await self._tend(run_id)
        return export.id

    async def cancel_export(self, export_id: str) -> None:
        """Ask for its end; one that has ended stays as it is."""
        export = await self._database.write(exports.request_cancel, export_id, now=self._clock())
        await self._tend(export.run_id)

    async def verify_export(self, export_id: str) -> None:
        """Check an ended export's files at their destination again."""
        export = await self._database.write(exports.request_verify, export_id, now=self._clock())
        await self._tend(export.run_id)

    async def start_evaluation(self, run_id: str, request: EvaluationRequest) -> str:
        """Queue an evaluation. NotFoundError, ConflictError when there is no such checkpoint."""
        step = None if request.checkpoint == "latest" else request.checkpoint
        await self._database.read(actions.check_checkpoint, run_id, step)
        evaluation = await self._database.write(
            evaluations.create,
            run_id,
            checkpoint_step=step,
            num_prompts=request.num_prompts,
            now=self._clock(),
        )
        await self._tend(run_id)
        return evaluation.id

    # workers

    async def register(self, registration: WorkerRegistration) -> WorkerLease:
        """A lease for an incarnation. NotFoundError, SupersededError, ConflictError."""
        given = await self._database.write(registry.register, registration, now=self._clock())
        config = RunConfig.model_validate(given.run.config)
        keys = self._keys.get(given.run.id) if config.links.encrypt else None
        self._heartbeats.hear(given.run.id, given.worker.id)
        self._heartbeats.forget(given.run.id)
        self._ensure_task(given.run).wake()
        return WorkerLease(
            worker_id=given.worker.id,
            config=given.run.config,
            run_folder=str(self._settings.folder.run(given.run.id).root.resolve()),
            job=given.job,
            desired=DesiredState(given.worker.desired),
            peers=given.peers,
            link_keys=keys,
        )

    async def heartbeat(self, worker_id: str, beat: Heartbeat) -> HeartbeatAnswer:
        """Store a heartbeat with its facts. NotFoundError, SupersededError."""
        now = self._clock()
        repeated = self._heartbeats.repeat(worker_id, beat, now=now)
        if repeated is not None:
            return repeated
        row = await self._database.read(workers.get, worker_id)
        if row.ended_at is None and row.incarnation == beat.incarnation:
            self._heartbeats.hear(row.run_id, worker_id)
        changes = self._heartbeats.changes_of(row.run_id)
        worker, answer, effects = await self._database.write(
            registry.heartbeat, worker_id, beat, now=now
        )
        self._heartbeats.remember(worker, answer, changes=changes)
        if effects.wake:
            self._heartbeats.forget(worker.run_id)
        if effects.wake or worker.run_id not in self._tasks:
            await self._tend(worker.run_id)
        await self._show(worker, effects)
        return answer

    async def leave(self, worker_id: str, reason: str) -> None:
        """A worker has drained and goes. NotFoundError."""
        worker = await self._database.write(registry.leave, worker_id, reason, now=self._clock())
        self._heartbeats.hear(worker.run_id, worker_id)
        self._heartbeats.forget(worker.run_id)
        await self._tend(worker.run_id)

    # inside

    async def _show(self, worker: Worker, effects: Effects) -> None:
        broadcaster = self._environment.broadcaster
        if effects.points and broadcaster.has_listeners(worker.run_id):
            for sample in effects.points:
                broadcaster.publish(worker.run_id, StreamEvent("point", point_data(sample)))
        if effects.blocked or effects.failed:
            run = await self._database.read(runs.get, worker.run_id)
            webhook = RunConfig.model_validate(run.config).supervision.webhook_env
            kind: Literal["blocked", "failed"] = "blocked" if effects.blocked else "failed"
            message = effects.blocked or effects.failed or ""
            logger.warning("run %s: %s: %s", run.id, kind, message)
            self._environment.alerts.send(run, webhook, kind, message)

    async def _tend(self, run_id: str) -> None:
        entry = self._tasks.get(run_id)
        if entry is not None and not entry[1].done():
            entry[0].wake()
        elif not self._shutting_down:
            self._ensure_task(await self._database.read(runs.get, run_id)).wake()

    def _ensure_task(self, run: Run) -> RunTask:
        entry = self._tasks.get(run.id)
        if entry is not None and not entry[1].done():
            return entry[0]
        run_task = RunTask(run, self._environment)
        if self._shutting_down:
            run_task.begin_shutdown()
        task = asyncio.create_task(run_task.run(), name=f"run-{run.id}")
        task.add_done_callback(lambda done: self._task_ended(run.id, done))
        self._tasks[run.id] = (run_task, task)
        return run_task

    def _task_ended(self, run_id: str, task: asyncio.Task[None]) -> None:
        entry = self._tasks.get(run_id)
        if entry is not None and entry[1] is task:
            del self._tasks[run_id]
            self._heartbeats.close_run(run_id)
        self._queue_changed.set()
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        logger.critical("the task of run %s ended: %s", run_id, error, exc_info=error)
        failing = asyncio.create_task(self._fail(run_id, f"internal error: {error!r}"))
        self._background.add(failing)
        failing.add_done_callback(self._background.discard)

    async def _fail(self, run_id: str, reason: str) -> None:
        with contextlib.suppress(ConflictError):
            await self._database.write(
                runs.transition, run_id, RunEvent.FAIL, now=self._clock(), reason=reason
            )

    async def _schedule(self) -> None:
        told: str | None = None
        while True:
            self._queue_changed.clear()
            try:
                await self._launch_queued()
                told = None
            except (EnvironmentFault, OSError) as error:
                if told != str(error):
                    logger.error("the scheduler tries again later: %s", error)
                told = str(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SCHEDULE_INTERVAL_S):
                    await self._queue_changed.wait()

    async def _launch_queued(self) -> None:
        num_active = await self._database.read(runs.count_in_states, ACTIVE_STATES)
        num_free = self._settings.max_active_runs - num_active
        if num_free <= 0:
            return
        for run_id in await self._database.read(runs.list_queued):
            if num_free <= 0:
                return
            live = await self._database.read(workers.list_for_run, run_id, live_only=True)
            if any(w.job_id is None for w in live):
                await self._tend(run_id)  # workers of the attempt before still drain
                continue
            try:
                started = await self._database.write(actions.launch, run_id, now=self._clock())
            except (ConflictError, NotFoundError):
                continue  # stopped meanwhile, or forgotten
            logger.info("run %s starts", run_id)
            self._ensure_task(started).new_attempt()
            num_free -= 1


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
