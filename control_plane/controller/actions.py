"""What people and the control plane itself do to runs: one write transaction each.

Every function takes a session first, as those of the store; `mode` matters to `stop` alone.
"""

from __future__ import annotations

from sqlmodel import Session

from control_plane.controller.facts import GATES
from control_plane.store import evaluations, exports, ledger, runs, workers
from control_plane.store.tables import Export, Run
from shared.api.exports import CHECKPOINT_PARTS, ExportRequest
from shared.errors import ConflictError, NotFoundError
from shared.states import (
    ACTIVE_STATES,
    ENDED_STATES,
    RunEvent,
    RunState,
    Stage,
)

SHUTDOWN_REASON = "control plane shut down"


def launch(session: Session, run_id: str, *, now: float) -> Run:
    """Queued to starting; leftovers of an earlier attempt are cleared."""
    evaluations.retire_failed(session, run_id)
    return runs.transition(
        session,
        run_id,
        RunEvent.LAUNCH,
        now=now,
        expected_state=RunState.QUEUED,
        drain_started_at=None,
        stop_mode=None,
        resume_on_start=False,
    )


def stop(session: Session, run_id: str, *, mode: str, now: float) -> Run:
    """Drain and stop, or with mode 'now' end the workers at once. An ended run stays as it is."""
    run = runs.get(session, run_id)
    if RunState(run.state) in ENDED_STATES:
        return run
    if run.state == RunState.STOPPING.value and (mode == run.stop_mode or mode == "drain"):
        return run
    return runs.transition(
        session,
        run_id,
        RunEvent.STOP,
        now=now,
        reason="stopped" if mode == "drain" else "stopped without a drain",
        stop_mode=mode,
        drain_started_at=None,
        resume_on_start=False,
    )


def pause(session: Session, run_id: str, *, mode: str, now: float) -> Run:
    """Hold every worker with its state."""
    del mode
    run = runs.get(session, run_id)
    if run.state == RunState.RUNNING.value and run.drain_started_at is not None:
        raise ConflictError(f"run {run_id!r} has done its work and is about to complete")
    return runs.transition(session, run_id, RunEvent.PAUSE, now=now, reason="paused")


def resume(session: Session, run_id: str, *, mode: str, now: float) -> Run:
    """Go on: from the held state, from the disk, or past a gate with the override recorded."""
    del mode
    run = runs.get(session, run_id)
    if run.state == RunState.BLOCKED.value:
        runs.add_override(session, run_id, GATES, now=now)
    evaluations.retire_failed(session, run_id)
    return runs.transition(
        session,
        run_id,
        RunEvent.RESUME,
        now=now,
        drain_started_at=None,
        stop_mode=None,
        resume_on_start=False,
    )


def pause_for_shutdown(session: Session, *, now: float) -> list[Run]:
    """Mark runs at work paused, to be resumed by the next start; let those on hold drain too."""
    paused: list[Run] = []
    for run in runs.list_in_states(session, ACTIVE_STATES):
        state = RunState(run.state)
        if state in (RunState.STARTING, RunState.RUNNING):
            paused.append(
                runs.transition(
                    session,
                    run.id,
                    RunEvent.PAUSE,
                    now=now,
                    reason=SHUTDOWN_REASON,
                    drain_started_at=now,
                    resume_on_start=True,
                )
            )
        elif state in (RunState.PAUSED, RunState.BLOCKED):
            runs.update(session, run.id, now=now, drain_started_at=now)
    return paused


def take_up(session: Session, *, resume: bool, now: float) -> list[Run]:
    """At a start: resume what the last shutdown paused; every run that needs a task."""
    for run in runs.list_in_states(session, [RunState.PAUSED]):
        if run.resume_on_start and resume:
            evaluations.retire_failed(session, run.id)
            runs.transition(
                session,
                run.id,
                RunEvent.RESUME,
                now=now,
                drain_started_at=None,
                resume_on_start=False,
            )
        elif run.resume_on_start:
            runs.update(session, run.id, now=now, resume_on_start=False)
    wanted = {run.id: run for run in runs.list_in_states(session, ACTIVE_STATES)}
    run_ids = workers.runs_with_live(session)
    run_ids |= {export.run_id for export in exports.list_open(session)}
    run_ids |= {evaluation.run_id for evaluation in evaluations.list_open(session)}
    for run_id in sorted(run_ids - set(wanted)):
        wanted[run_id] = runs.get(session, run_id)
    return list(wanted.values())


def check_checkpoint(session: Session, run_id: str, step: int | None) -> None:
    """The checkpoint to evaluate is there. NotFoundError names those that are."""
    runs.get(session, run_id)
    present = [checkpoint.step for checkpoint in ledger.list_checkpoints(session, run_id)]
    if not present:
        raise ConflictError(f"run {run_id!r} has no complete checkpoint to evaluate yet")
    if step is not None and step not in present:
        known = ", ".join(str(s) for s in present)
        raise NotFoundError(f"run {run_id!r} has no checkpoint of step {step}; it has: {known}")


def check_exportable(session: Session, run_id: str, request: ExportRequest) -> None:
    """The checkpoints that an export needs are there. ConflictError or NotFoundError if not."""
    stages = runs.get(session, run_id).config.get("stages", [])
    needed = CHECKPOINT_PARTS & set(request.parts(trains=Stage.TRAIN in stages))
    if not needed:
        return
    present = [checkpoint.step for checkpoint in ledger.list_checkpoints(session, run_id)]
    if not present:
        when = (
            "yet: export again when it has one" if Stage.TRAIN in stages else "and does not train"
        )
        raise ConflictError(
            f"run {run_id!r} has no complete checkpoint to export the drafter from {when}, or "
            "include only parts that need none, such as metadata, logs and dataset"
        )
    wanted = [] if isinstance(request.checkpoints, str) else request.checkpoints
    missing = sorted(set(wanted) - set(present))
    if missing:
        raise NotFoundError(
            f"run {run_id!r} has no checkpoint of step {', '.join(map(str, missing))}; it has: "
            f"{', '.join(map(str, present))}"
        )


def check_deletable(session: Session, run_id: str) -> list[Export]:
    """Completed exports of an ended run that nothing works on; ConflictError otherwise."""
    run = runs.get(session, run_id)
    if RunState(run.state) not in ENDED_STATES:
        raise ConflictError(f"run {run_id!r} is {run.state}; stop it before deleting it")
    if workers.list_for_run(session, run_id, live_only=True):
        raise ConflictError(f"workers of run {run_id!r} are still ending; try again shortly")
    all_exports = exports.list_for_run(session, run_id)
    busy = [e.id for e in all_exports if e.state not in exports.ENDED]
    if busy:
        raise ConflictError(f"run {run_id!r} is being exported ({', '.join(busy)}); cancel first")
    return [e for e in all_exports if e.state == "completed" and not e.problems]
