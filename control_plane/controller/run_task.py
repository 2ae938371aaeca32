"""One run, looked after: an asyncio task that looks, decides and acts until nothing is left to do.

    wake or tick -> read rows -> decisions (pure) -> actions on workers, steps of the run -> figures

The task of a run is the only one that launches or ends its workers. Everybody else (routes,
heartbeats) changes rows and wakes it. It ends when the run has ended or waits in the queue, no
worker lives and no job is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from control_plane.broadcast import StreamEvent
from control_plane.controller.alerts import AlertKind
from control_plane.controller.decisions import (
    Phase,
    Situation,
    Trip,
    all_registered,
    phase_of,
    supervise,
)
from control_plane.controller.environment import ControllerEnvironment
from control_plane.controller.figures import FigureKeeper
from control_plane.controller.job_runner import JobRunner
from control_plane.controller.lifecycle import (
    BeginDrain,
    EndDrain,
    Move,
    StartFinalEvaluation,
    Step,
    next_step,
)
from control_plane.controller.lost_data import find_lost_data
from control_plane.controller.measures import merge_progress
from control_plane.controller.reconcile import reconcile_checkpoints
from control_plane.controller.run_file import write_run_file
from control_plane.controller.sightings import Sightings
from control_plane.controller.slots import run_slots
from control_plane.controller.snapshot import Snapshot, take_snapshot
from control_plane.controller.supervisor import Supervisor
from control_plane.store import evaluations, runs
from control_plane.store.tables import Run, Worker
from control_plane.store.views import run_view
from shared.config import RunConfig
from shared.errors import ConflictError, EnvironmentFault, NotFoundError
from shared.states import ACTIVE_STATES, RunEvent, RunState

logger = logging.getLogger(__name__)
MAX_TICK_S = 1.0
_NEEDS_DATA = (RunState.STARTING, RunState.RUNNING)
MIN_TICK_S = 0.05


class RunTask:
    """Looks after one run."""

    def __init__(self, run: Run, environment: ControllerEnvironment) -> None:
        self.run_id = run.id
        self._environment = environment
        self._database = environment.database
        self._config = RunConfig.model_validate(run.config)
        self._slots = run_slots(self._config)
        self._folder = environment.folder.run(run.id)
        self._supervisor = Supervisor(
            run.id,
            self._folder,
            environment.database,
            environment.launcher,
            clock=environment.clock,
        )
        self._sightings = Sightings()
        self._jobs = JobRunner(self._config, environment, self._supervisor, self._sightings)
        self._figures = FigureKeeper(self._config, environment)
        self._wake = asyncio.Event()
        self._shutting_down = False
        self._seen_workers: list[Worker] = []
        self._is_settled = False
        self._drain_seen_at: float | None = None
        self._recorded: tuple[object, ...] = ()
        self._problem: str | None = None
        self._must_check_data = True
        self._lost_data: str | None = None

    @property
    def drain_deadline_s(self) -> float:
        """The longest time a drain of this run takes."""
        return self._config.supervision.drain_deadline_s

    def wake(self) -> None:
        """Look again at once."""
        self._wake.set()

    def new_attempt(self) -> None:
        """Forget the failures so far: the run starts, or a person has resumed it."""
        self._sightings.new_attempt()
        self._must_check_data = True
        self._wake.set()

    def begin_shutdown(self) -> None:
        """From now on every worker of the run drains, those of jobs too."""
        self._shutting_down = True
        self._wake.set()

    async def run(self) -> None:
        """Look after the run until nothing is left to do."""
        tick_s = min(MAX_TICK_S, max(MIN_TICK_S, self._config.supervision.heartbeat_s / 2))
        is_taken_up = False
        while True:
            try:
                self._wake.clear()
                if not is_taken_up:
                    await self._take_up()
                    is_taken_up = True
                is_needed = await self._look()
                await self._tell(None)
                if not is_needed and not self._wake.is_set():
                    return
            except ConflictError as error:
                # Somebody else moved the run between the look and the step: look again.
                logger.info("run %s: %s", self.run_id, error)
                self._environment.heartbeats.forget(self.run_id)
            except (EnvironmentFault, OSError) as error:
                # The machine, not the run, is at fault: what it holds goes on when that is over.
                await self._tell(str(error))
                self._environment.heartbeats.forget(self.run_id)
            except NotFoundError:
                logger.info("run %s has been deleted", self.run_id)
                return
            await self._rest(tick_s)

    async def _rest(self, tick_s: float) -> None:
        """Until something calls for a look: a wake, a dead process, or the time.

        While every worker is at work a look a second is enough; else timers run that are shorter.
        """
        rested_s = 0.0
        while rested_s < (MAX_TICK_S if self._is_settled else tick_s):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(tick_s):
                    await self._wake.wait()
                    return
            rested_s += tick_s
            if self._supervisor.find_dead(self._seen_workers):
                return

    async def _tell(self, problem: str | None) -> None:
        """Log and show what holds the run up, and that it is over; each of them once."""
        if problem == self._problem:
            return
        self._problem = problem
        if problem is None:
            logger.info("run %s goes on", self.run_id)
        else:
            logger.error("run %s: looks again later: %s", self.run_id, problem)
        broadcaster = self._environment.broadcaster
        if broadcaster.has_listeners(self.run_id):
            with contextlib.suppress(EnvironmentFault, NotFoundError, OSError):
                run = await self._database.read(runs.get, self.run_id)
                data = run_view(run, problem).model_dump(mode="json")
                broadcaster.publish(self.run_id, StreamEvent("run", data))

    async def _take_up(self) -> None:
        await self._supervisor.free_memory()
        await self._check_data()
        if self._lost_data is None:
            await reconcile_checkpoints(self._database, self.run_id, self._folder)

    async def _check_data(self) -> None:
        """Before an attempt: a run whose data are gone is not made again from nothing."""
        self._lost_data = await find_lost_data(self._database, self.run_id, self._folder)
        self._must_check_data = False

    async def _look(self) -> bool:
        """One look and everything due; False when the run needs no task any more."""
        await self._environment.heartbeats.flush()
        if self._must_check_data:
            await self._check_data()
        seen = await self._database.read(take_snapshot, self.run_id)
        if self._lost_data is not None and RunState(seen.run.state) in _NEEDS_DATA:
            await self._fail(seen, self._lost_data, "failed")
            return True
        if self._lost_data is None:  # else the record would make the folder again
            await self._record(seen.run)
        self._seen_workers = [w for w in seen.workers if w.ended_at is None]
        self._is_settled = RunState(seen.run.state) is RunState.RUNNING and all_registered(
            self._slots, self._seen_workers
        )
        heartbeats, now_s = self._environment.heartbeats, self._environment.monotonic()
        self._sightings.look(seen.workers, heartbeats.arrivals(self.run_id), now_s)
        dead = self._supervisor.find_dead(seen.workers)
        has_acted = await self._tend_workers(seen, dead)
        has_acted |= await self._jobs.tend(seen, dead, shutting_down=self._shutting_down)
        # In a shutdown a run goes no further, but one that is being stopped ends.
        if not self._shutting_down or RunState(seen.run.state) is RunState.STOPPING:
            has_acted |= await self._step(seen)
        if has_acted:
            # What was done has consequences that are due now, not in a tick; what was seen is old.
            self._environment.heartbeats.forget(self.run_id)
            self._wake.set()
            return True
        await self._figures.update(seen.run, seen.workers, seen.evaluations)
        if seen.has_live_workers:
            return True
        if self._shutting_down:
            return False
        return self._jobs.has_open(seen) or RunState(seen.run.state) in ACTIVE_STATES

    async def _tend_workers(self, seen: Snapshot, dead: Mapping[str, int | None]) -> bool:
        run = seen.run
        phase = phase_of(run, shutting_down=self._shutting_down)
        now_s = self._environment.monotonic()
        heard = self._sightings.heard
        situation = Situation(
            now=now_s,
            dead=dead,
            # In a shutdown heartbeats may find nobody: the drain's deadline is what counts.
            heard=dict.fromkeys(heard, now_s) if self._shutting_down else heard,
            ended=self._sightings.ended,
            drain_from=self._drain_from(run, phase),
            archiver_may_finish=RunState(run.state) is RunState.RUNNING,
        )
        own = seen.own_workers
        actions = supervise(phase, self._slots, own, self._config.supervision, situation)
        trip = next((action for action in actions if isinstance(action, Trip)), None)
        if trip is not None:
            await self._fail(seen, trip.message, "breaker")
            return True
        wanted = phase in (Phase.WORK, Phase.HOLD)
        await self._supervisor.carry_out(actions, own, wanted=wanted)
        return bool(actions)

    def _drain_from(self, run: Run, phase: Phase) -> float | None:
        if phase is not Phase.DRAIN:
            self._drain_seen_at = None
            return None
        if self._drain_seen_at is None:
            self._drain_seen_at = self._environment.monotonic()
        return self._drain_seen_at

    async def _step(self, seen: Snapshot) -> bool:
        step = next_step(
            seen.run,
            self._config,
            self._slots,
            seen.own_workers,
            seen.evaluations,
            newest_checkpoint_step=seen.newest_checkpoint_step,
            evaluator_lives=seen.evaluator_lives,
        )
        if step is not None:
            await self._take(seen, step)
        return step is not None

    async def _take(self, seen: Snapshot, step: Step) -> None:
        run = seen.run
        write, now = self._database.write, self._environment.clock()
        match step:
            case Move(RunEvent.FAIL, reason):
                await self._fail(seen, reason or "failed", "failed")
            case Move(event, reason):
                moved = await write(
                    runs.transition,
                    run.id,
                    event,
                    now=now,
                    reason=reason,
                    expected_state=RunState(run.state),
                    drain_started_at=None,
                    # Whoever hears of the end reads the last figures with it.
                    progress=merge_progress(run.progress, seen.workers),
                )
                logger.info("run %s is %s", run.id, moved.state)
            case StartFinalEvaluation():
                await write(
                    evaluations.create,
                    run.id,
                    checkpoint_step=None,
                    num_prompts=None,
                    now=now,
                    final=True,
                )
            case BeginDrain():
                await write(runs.update, run.id, now=now, drain_started_at=now)
            case EndDrain():
                await write(runs.update, run.id, now=now, drain_started_at=None)

    async def _fail(self, seen: Snapshot, reason: str, kind: AlertKind) -> None:
        run = seen.run
        await self._database.write(
            runs.transition,
            run.id,
            RunEvent.FAIL,
            now=self._environment.clock(),
            reason=reason,
            expected_state=RunState(run.state),
            drain_started_at=None,
            progress=merge_progress(run.progress, seen.workers),
        )
        logger.error("run %s failed: %s", run.id, reason)
        webhook = self._config.supervision.webhook_env
        self._environment.alerts.send(run, webhook, kind, reason)

    async def _record(self, run: Run) -> None:
        """Keep run.json true to the run's state."""
        record = (run.state, run.reason, run.acceptance_length, tuple(run.overrides))
        if record != self._recorded:
            await asyncio.to_thread(write_run_file, self._folder, run)
            self._recorded = record
