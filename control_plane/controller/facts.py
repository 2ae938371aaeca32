"""Applying the facts that heartbeats carry, in the transaction of the heartbeat itself.

A fact may arrive again (its answer was lost): each is stored by its natural key, and facts below
the number already acknowledged are skipped. What a fact does to the run's state happens here too,
so that a state and the reason for it are one commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlmodel import Session

from control_plane.store import evaluations, events, exports, ledger, runs, series
from control_plane.store.series import Sample
from control_plane.store.tables import Run, Worker
from shared.api.events import (
    CheckpointRemoved,
    CheckpointSaved,
    EvaluationDone,
    ExportProgress,
    GateReport,
    LogLine,
    SegmentSealed,
    StepTaken,
    WorkerEvent,
    WorkerFailed,
)
from shared.errors import DiskFullError, IntegrityError, ReadOnlyError, StorageFault
from shared.states import ENDED_STATES, RunEvent, RunState

GATES = "gates"
_SERIES = ("loss", "accuracy", "lr", "grad_norm", "simulated_acceptance_length")
_MAY_BLOCK = (RunState.STARTING, RunState.RUNNING)
# A person frees or repairs the disk and resumes; until then another try would only fail again.
_PAUSES = frozenset({DiskFullError.slug, StorageFault.slug, ReadOnlyError.slug})


@dataclass
class Effects:
    """What the caller does after the commit: wake the run's task, show points, raise alarms."""

    wake: bool = False
    points: list[Sample] = field(default_factory=list)
    blocked: str | None = None
    failed: str | None = None


def apply_facts(
    session: Session, worker: Worker, facts: list[WorkerEvent], *, now: float
) -> Effects:
    """Store every new fact of one heartbeat; the worker's `acked_events` grows."""
    effects = Effects()
    next_number = worker.acked_events
    steps: list[StepTaken] = []
    for fact in facts:
        if fact.number < next_number:
            continue
        next_number = fact.number + 1
        if isinstance(fact, StepTaken):
            steps.append(fact)
        else:
            _apply(session, worker, fact, effects, now)
    if steps:
        _take_steps(session, worker.run_id, steps, effects, now)
    worker.acked_events = next_number
    session.add(worker)
    return effects


def _apply(
    session: Session, worker: Worker, fact: WorkerEvent, effects: Effects, now: float
) -> None:
    run_id = worker.run_id
    effects.wake = effects.wake or not isinstance(fact, LogLine)
    match fact:
        case SegmentSealed():
            try:
                ledger.add_segment(session, run_id, fact, now=now)
            except IntegrityError as error:
                _fail_run(session, run_id, str(error), effects, now)
        case CheckpointSaved():
            _add_checkpoint(session, run_id, fact, now)
        case CheckpointRemoved():
            ledger.remove_checkpoint(session, run_id, fact.step, now=now)
        case GateReport():
            _take_gate_report(session, run_id, fact, effects, now)
        case EvaluationDone():
            _take_evaluation(session, run_id, fact, now)
        case ExportProgress():
            if exports.get(session, fact.export_id).run_id == run_id:
                exports.record_progress(session, fact, now=now)
        case LogLine():
            data = {
                "level": fact.level,
                "role": worker.role,
                "rank": worker.rank,
                "message": fact.message,
                "created_at": fact.created_at,
            }
            events.append(session, run_id, "log", data, now=now)
        case WorkerFailed():
            _take_failure(session, worker, fact, effects, now)


def _take_steps(
    session: Session, run_id: str, steps: list[StepTaken], effects: Effects, now: float
) -> None:
    for taken in steps:
        for name in _SERIES:
            value = getattr(taken, name)
            if value is not None:
                effects.points.append(Sample(name, taken.step, now, float(value)))
    series.add(session, run_id, effects.points)
    last = steps[-1]
    runs.update(session, run_id, now=now, loss=last.loss, accuracy=last.accuracy)


def _add_checkpoint(session: Session, run_id: str, saved: CheckpointSaved, now: float) -> None:
    if not ledger.add_checkpoint(session, run_id, saved, now=now):
        return
    every = runs.get(session, run_id).config.get("evaluate", {}).get("every_checkpoints", 0)
    num_saved = len(ledger.list_checkpoints(session, run_id, present_only=False))
    if every and num_saved % every == 0:
        evaluations.create(session, run_id, checkpoint_step=saved.step, num_prompts=None, now=now)


def _take_gate_report(
    session: Session, run_id: str, fact: GateReport, effects: Effects, now: float
) -> None:
    run = runs.update(session, run_id, now=now, gate_report=fact.report)
    data = {"blocked": fact.blocked, "reason": fact.reason, "report": fact.report}
    events.append(session, run_id, "report", data, now=now)
    if fact.blocked and GATES not in run.overrides and RunState(run.state) in _MAY_BLOCK:
        effects.blocked = fact.reason or "a quality gate is closed; see the run's report"
        runs.transition(session, run_id, RunEvent.BLOCK, now=now, reason=effects.blocked)


def _take_evaluation(session: Session, run_id: str, fact: EvaluationDone, now: float) -> None:
    known = evaluations.get(session, fact.evaluation_id)
    if known.run_id != run_id or known.state in evaluations.ENDED:
        return
    done = evaluations.complete(session, fact.evaluation_id, fact.result, now=now)
    length = fact.result.get("acceptance_length")
    if not isinstance(length, int | float):
        return
    step = fact.result.get("checkpoint_step", done.checkpoint_step)
    if isinstance(step, int):
        ledger.set_acceptance_length(session, run_id, step, float(length), now=now)
        sample = Sample("acceptance_length", step, now, float(length))
        series.add(session, run_id, [sample])
    runs.update(session, run_id, now=now, announce=True, acceptance_length=float(length))


def _take_failure(
    session: Session, worker: Worker, fact: WorkerFailed, effects: Effects, now: float
) -> None:
    worker.last_error = fact.message
    session.add(worker)
    name = f"{worker.role} {worker.rank}"
    if worker.job_id is not None:
        if not fact.retryable:
            end_job(session, worker.job_id, fact.message, now=now)
        return
    run = runs.get(session, worker.run_id)
    if fact.slug in _PAUSES:
        if RunState(run.state) in _MAY_BLOCK:
            reason = f"{name}: {fact.message}"
            runs.transition(session, run.id, RunEvent.PAUSE, now=now, reason=reason)
            effects.blocked = reason
    elif not fact.retryable:
        _fail_run(session, worker.run_id, f"{name} failed: {fact.message}", effects, now)


def _fail_run(session: Session, run_id: str, reason: str, effects: Effects, now: float) -> None:
    run: Run = runs.get(session, run_id)
    if RunState(run.state) not in ENDED_STATES:
        runs.transition(session, run_id, RunEvent.FAIL, now=now, reason=reason)
        effects.failed = reason


def end_job(session: Session, job_id: str, problem: str, *, now: float) -> None:
    """The worker of an export or evaluation failed for good."""
    if job_id.startswith("export-"):
        exports.end(session, job_id, state="failed", now=now, problem=problem)
    else:
        evaluations.fail(session, job_id, problem, now=now)
