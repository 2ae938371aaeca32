"""Exports and evaluations of a run: one of each kind at a time, each by a worker of its own.

    queued --worker launched--> running --fact of the worker--> completed | failed | cancelled

A job goes on over restarts of its worker and of the control plane; when its worker's breaker
trips, the job fails with the last error. Jobs do not depend on the run's state, but evaluations
end when their run is stopped, and the run counts as stopped when their workers have gone. When a
job has ended its worker drains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session

from control_plane.controller.decisions import Phase
from control_plane.controller.slots import Slot, evaluation_slot, export_slot
from control_plane.store import evaluations, exports, ledger
from control_plane.store.tables import Evaluation, Export, Run, Worker
from shared.config import RunConfig
from shared.states import Role, RunState, WorkerState

STOPPED_PROBLEM = "the run was stopped before the evaluation ended"


@dataclass(frozen=True)
class JobView:
    """A job of either kind, as far as its supervision goes."""

    id: str
    slot: Slot
    ended: bool
    queued: bool
    cancelled: bool
    final: bool


def jobs_of(
    config: RunConfig, exports_: Sequence[Export], evaluations_: Sequence[Evaluation]
) -> list[JobView]:
    """Every job of the run, oldest first, exports before evaluations."""
    views = [
        JobView(
            e.id,
            export_slot(e.id),
            ended=e.state in exports.ENDED,
            queued=e.state == "queued",
            cancelled=e.cancel_requested,
            final=False,
        )
        for e in exports_
    ]
    views += [
        JobView(
            e.id,
            evaluation_slot(config, e.id),
            ended=e.state in evaluations.ENDED,
            queued=e.state == "queued",
            cancelled=False,
            final=e.final,
        )
        for e in evaluations_
    ]
    return views


def due_jobs(
    jobs: Sequence[JobView],
    workers: Sequence[Worker],
    *,
    shutting_down: bool,
    run_is_held: bool = False,
) -> list[tuple[JobView, Phase]]:
    """Jobs that need a look, with what they want of their worker.

    Of each kind only the oldest open job works; a job that has ended is due while its worker
    lives, and the next one waits for that, since they share a slot's name and log. A worker that
    has finished never takes its job up again: when the job was queued anew in the meantime (a
    check of an export), that worker leaves first. While the run is held (paused, blocked), its
    final evaluation gets no worker: it is the run's own work, and waits with the rest of it.
    """
    due: list[tuple[JobView, Phase]] = []
    busy_roles = set()
    for job in jobs:
        live = _workers_of(job, workers)
        is_over = job.ended or job.cancelled or shutting_down
        if live and (is_over or any(w.state == WorkerState.FINISHED for w in live)):
            due.append((job, Phase.DRAIN))
            busy_roles.add(job.slot.role)
    for job in jobs:
        if job.ended or job.slot.role in busy_roles or shutting_down:
            continue
        busy_roles.add(job.slot.role)
        if job.final and run_is_held and not _workers_of(job, workers):
            continue
        due.append((job, Phase.CLEAR if job.cancelled else Phase.WORK))
    return due


def _workers_of(job: JobView, workers: Sequence[Worker]) -> list[Worker]:
    return [w for w in workers if w.ended_at is None and job.slot.holds(w)]


def begin_job(session: Session, run_id: str, job: JobView, *, now: float) -> bool:
    """Before the first launch: resolve 'latest', mark the evaluation running.

    False when there is nothing to evaluate; the evaluation has failed with the reason then.
    """
    if not job.id.startswith("eval-"):
        return True
    evaluation = evaluations.get(session, job.id)
    if evaluation.checkpoint_step is not None:
        present = {c.step for c in ledger.list_checkpoints(session, run_id)}
        step: int | None = evaluation.checkpoint_step
        problem = f"checkpoint {step} was removed before it could be evaluated"
        is_there = step in present
    else:
        newest = ledger.newest_checkpoint(session, run_id)
        step = newest.step if newest else None
        problem = "the run has no complete checkpoint"
        is_there = step is not None
    if not is_there or step is None:
        evaluations.fail(session, job.id, problem, now=now)
        return False
    evaluations.start(session, job.id, checkpoint_step=step, now=now)
    return True


def end_cancelled(session: Session, job: JobView, *, now: float) -> None:
    """A cancelled export whose worker is gone, or never was."""
    exports.end(session, job.id, state="cancelled", now=now)


def end_evaluations(session: Session, run_id: str, problem: str, *, now: float) -> None:
    """The run is stopped: its open evaluations end."""
    for evaluation in evaluations.list_for_run(session, run_id):
        evaluations.fail(session, evaluation.id, problem, now=now)


def ends_at_once(run: Run, job: JobView) -> bool:
    """Whether the worker of an ended evaluation is killed, as those of its run are."""
    return (
        job.ended
        and job.slot.role is Role.EVALUATOR
        and is_stopping(run)
        and run.stop_mode == "now"
    )


def is_held(run: Run) -> bool:
    """Whether the run's own work waits for a person."""
    return RunState(run.state) in (RunState.PAUSED, RunState.BLOCKED)


def is_stopping(run: Run) -> bool:
    """Whether evaluations of the run end now."""
    return RunState(run.state) is RunState.STOPPING
