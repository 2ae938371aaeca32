"""Looks after the workers of a run's jobs, for the run's task."""

from __future__ import annotations

from collections.abc import Mapping

from control_plane.controller.decisions import Phase, Situation, Trip, supervise
from control_plane.controller.environment import ControllerEnvironment
from control_plane.controller.facts import end_job
from control_plane.controller.jobs import (
    STOPPED_PROBLEM,
    JobView,
    begin_job,
    due_jobs,
    end_cancelled,
    end_evaluations,
    ends_at_once,
    is_held,
    is_stopping,
    jobs_of,
)
from control_plane.controller.sightings import Sightings
from control_plane.controller.snapshot import Snapshot
from control_plane.controller.supervisor import Supervisor
from shared.config import RunConfig


class JobRunner:
    """Exports and evaluations of one run.

    When the run is stopped, its open evaluations end and their workers leave: by a drain, or
    killed at once as the stop says. A worker in a drain has `drain_deadline_s` from its beginning.
    """

    def __init__(
        self,
        config: RunConfig,
        environment: ControllerEnvironment,
        supervisor: Supervisor,
        sightings: Sightings,
    ) -> None:
        self._config = config
        self._environment = environment
        self._supervisor = supervisor
        self._sightings = sightings
        self._drain_from: dict[str, float] = {}

    def has_open(self, seen: Snapshot) -> bool:
        """Whether any job of the run has not ended."""
        jobs = jobs_of(self._config, seen.exports, seen.evaluations)
        return any(not job.ended for job in jobs)

    async def tend(
        self, seen: Snapshot, dead: Mapping[str, int | None], *, shutting_down: bool
    ) -> bool:
        """Do what is due for every job; whether anything was."""
        jobs = jobs_of(self._config, seen.exports, seen.evaluations)
        if is_stopping(seen.run) and any(e.ended_at is None for e in seen.evaluations):
            await self._environment.database.write(
                end_evaluations, seen.run.id, STOPPED_PROBLEM, now=self._environment.clock()
            )
            return True
        has_acted = False
        due = due_jobs(
            jobs, seen.workers, shutting_down=shutting_down, run_is_held=is_held(seen.run)
        )
        for job, phase in due:
            has_acted |= await self._tend(seen, job, phase, dead, shutting_down=shutting_down)
        return has_acted

    async def _tend(
        self,
        seen: Snapshot,
        job: JobView,
        phase: Phase,
        dead: Mapping[str, int | None],
        *,
        shutting_down: bool,
    ) -> bool:
        database, now = self._environment.database, self._environment.clock()
        now_s = self._environment.monotonic()
        rows = [w for w in seen.workers if job.slot.holds(w)]
        if phase is Phase.CLEAR:
            await database.write(end_cancelled, job, now=now)
            return True
        if phase is Phase.DRAIN:
            self._drain_from.setdefault(job.id, now_s)
        else:
            self._drain_from.pop(job.id, None)
        heard = self._sightings.heard
        situation = Situation(
            now=now_s,
            dead=dead,
            # In a shutdown heartbeats may find nobody: the drain's deadline is what counts.
            heard=dict.fromkeys(heard, now_s) if shutting_down else heard,
            ended=self._sightings.ended,
            drain_from=self._drain_from.get(job.id),
        )
        if ends_at_once(seen.run, job):
            phase = Phase.CLEAR
        actions = supervise(phase, [job.slot], rows, self._config.supervision, situation)
        trip = next((action for action in actions if isinstance(action, Trip)), None)
        if trip is not None:
            await database.write(end_job, job.id, trip.message, now=now)
            return True
        is_new = phase is Phase.WORK and job.queued
        if is_new and not await database.write(begin_job, seen.run.id, job, now=now):
            return True
        await self._supervisor.carry_out(actions, rows, wanted=phase is Phase.WORK)
        return bool(actions)
