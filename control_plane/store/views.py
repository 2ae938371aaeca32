"""Rows as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence

from control_plane.store.slots import newest_of_slots, slot_of
from control_plane.store.tables import Checkpoint, Evaluation, Export, Run, Worker
from shared.api.exports import ExportView
from shared.api.runs import (
    CheckpointView,
    EvaluationView,
    Progress,
    RunView,
    Throughput,
    WorkerView,
)
from shared.api.workers import QueueReport
from shared.states import (
    ENDED_STATES,
    DesiredState,
    Role,
    RunState,
    Stage,
    WorkerState,
    allowed_actions,
)


def run_view(run: Run, problem: str | None = None) -> RunView:
    """`problem`: what holds a living run up although its row cannot say so; its reason then."""
    state = RunState(run.state)
    is_held_up = problem is not None and state not in ENDED_STATES
    return RunView(
        id=run.id,
        name=run.name,
        state=state,
        stage=Stage(run.stage) if run.stage else None,
        reason=problem if is_held_up else run.reason,
        created_at=run.created_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        config_sha256=run.config_sha256,
        progress=Progress.model_validate(run.progress),
        throughput=Throughput.model_validate(run.throughput),
        queues=[QueueReport.model_validate(queue) for queue in run.queues],
        loss=run.loss,
        accuracy=run.accuracy,
        acceptance_length=run.acceptance_length,
        bottleneck=run.bottleneck,
        eta_s=run.eta_s,
        allowed_actions=allowed_actions(state),
    )


def worker_view(worker: Worker, now: float) -> WorkerView:
    """`now` gives the age of the last heartbeat; None before the first one."""
    beat = worker.heartbeat_at
    return WorkerView(
        id=worker.id,
        run_id=worker.run_id,
        role=Role(worker.role),
        rank=worker.rank,
        host=worker.host,
        pid=worker.pid or 0,
        device=worker.device,
        state=WorkerState(worker.state),
        heartbeat_age_s=None if beat is None else max(0.0, now - beat),
        restarts=worker.restarts,
        last_error=worker.last_error,
        registered_at=worker.registered_at or worker.launched_at,
        metrics=worker.metrics,
        waits_for=worker.waits_for,
    )


def slot_views(incarnations: Sequence[Worker], now: float) -> list[WorkerView]:
    """A run's slots as a person follows them, from its incarnations in order of launch.

    Each slot is shown by its newest incarnation, also when that has ended, with the last error that
    any incarnation had. Of the jobs of a role only the newest is shown, since they run one after
    another. A worker that is asked to hold counts as paused, also where it has nothing to do anyway
    and so never says that it holds.
    """
    errors = {slot_of(w): w.last_error for w in incarnations if w.last_error}
    shown = {(w.role, w.rank, w.job_id is None): w for w in newest_of_slots(incarnations)}
    return [
        worker_view(worker, now).model_copy(
            update={"last_error": errors.get(slot_of(worker)), "state": _state_for_people(worker)}
        )
        for worker in shown.values()
    ]


def _state_for_people(worker: Worker) -> WorkerState:
    state = WorkerState(worker.state)
    holds = (
        worker.ended_at is None
        and worker.registered_at is not None
        and worker.desired == DesiredState.PAUSE.value
        and state in (WorkerState.STARTING, WorkerState.RUNNING)
    )
    return WorkerState.PAUSED if holds else state


def checkpoint_view(checkpoint: Checkpoint) -> CheckpointView:
    return CheckpointView(
        step=checkpoint.step,
        epoch=checkpoint.epoch,
        loss=checkpoint.loss,
        num_bytes=checkpoint.num_bytes,
        path=checkpoint.path,
        created_at=checkpoint.created_at,
        acceptance_length=checkpoint.acceptance_length,
    )


def evaluation_view(evaluation: Evaluation) -> EvaluationView:
    return EvaluationView.model_validate(
        evaluation.model_dump(include=set(EvaluationView.model_fields))
    )


def export_view(export: Export) -> ExportView:
    return ExportView.model_validate(export.model_dump(include=set(ExportView.model_fields)))
