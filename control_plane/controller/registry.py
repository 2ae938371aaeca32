"""The registry protocol: register, heartbeat, leave.

    worker --registration--> lease       worker --heartbeat (state, figures, facts)--> answer

Each call is one write transaction: the row, the facts, and what they do to the run. The answer
carries what the supervisor wants of the worker, as it stands in the worker's row.

Invariants: an incarnation that has ended, or is not the newest of its slot, is refused for good;
peers are live, registered workers of the run itself; link keys leave only with a lease.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from control_plane.controller.facts import Effects, apply_facts
from control_plane.controller.slots import may_register
from control_plane.store import evaluations, exports, runs, workers
from control_plane.store.tables import Run, Worker
from control_plane.store.views import evaluation_view, export_view
from shared.api.workers import Heartbeat, HeartbeatAnswer, Peer, WorkerRegistration
from shared.config import RunConfig
from shared.errors import ConflictError
from shared.states import ACTIVE_STATES, DesiredState, Role, RunState, WorkerState

_GONE = (WorkerState.EXITED.value, WorkerState.FAILED.value)


@dataclass(frozen=True)
class Registered:
    """What a lease is made of."""

    worker: Worker
    run: Run
    job: dict[str, Any] | None
    peers: list[Peer]


def register(session: Session, registration: WorkerRegistration, *, now: float) -> Registered:
    """Give the slot's lease to this incarnation.

    Raises NotFoundError for an unknown run or job, SupersededError for an incarnation that has
    ended, ConflictError when nobody waits for such a worker.
    """
    run = runs.get(session, registration.run_id)
    is_known = any(
        (w.role, w.rank, w.incarnation)
        == (registration.role.value, registration.rank, registration.incarnation)
        for w in workers.list_for_run(session, run.id)
    )
    if not is_known:
        _check_wanted(run, registration)
    worker = workers.register(session, registration, now=now)
    return Registered(
        worker, run, _job(session, worker.job_id), peers_of(session, run.id, worker.id)
    )


def heartbeat(
    session: Session, worker_id: str, beat: Heartbeat, *, now: float
) -> tuple[Worker, HeartbeatAnswer, Effects]:
    """Store a heartbeat and its facts; the answer, and what to do after the commit."""
    before = workers.get(session, worker_id)
    state, endpoints = before.state, before.endpoints
    worker = workers.heartbeat(session, worker_id, beat, now=now)
    effects = apply_facts(session, worker, beat.events, now=now)
    if worker.state != state or worker.endpoints != endpoints:
        effects.wake = True
    run = runs.get(session, worker.run_id)
    answer = HeartbeatAnswer(
        desired=DesiredState(worker.desired),
        peers=peers_of(session, worker.run_id, worker.id),
        acked_events=worker.acked_events,
        overrides=run.overrides,
    )
    return worker, answer, effects


def leave(session: Session, worker_id: str, reason: str, *, now: float) -> Worker:
    """The worker goes by itself.

    The row of a process we launched is closed when the process has ended, so that it is waited
    for; until then the worker is nobody's peer any more.
    """
    worker = workers.get(session, worker_id)
    if worker.ended_at is not None:
        return worker
    if not worker.launched:
        return workers.end(
            session, worker_id, state=WorkerState.EXITED, reason=reason[:200], now=now
        )
    worker.state, worker.end_reason, worker.heartbeat_at = (
        WorkerState.EXITED.value,
        reason[:200],
        now,
    )
    session.add(worker)
    session.flush()
    return worker


def peers_of(session: Session, run_id: str, worker_id: str) -> list[Peer]:
    """Everybody else of the run, in a fixed order."""
    live = workers.list_for_run(session, run_id, live_only=True)
    return [
        Peer(
            worker_id=w.id,
            role=Role(w.role),
            rank=w.rank,
            incarnation=w.incarnation,
            host=w.host,
            endpoints=w.endpoints,
        )
        for w in sorted(live, key=lambda w: (w.role, w.rank))
        if w.registered_at is not None
        and w.job_id is None
        and w.id != worker_id
        and w.state not in _GONE
    ]


def _check_wanted(run: Run, registration: WorkerRegistration) -> None:
    state = RunState(run.state)
    if state not in ACTIVE_STATES:
        raise ConflictError(
            f"run {run.id!r} is {state.value} and takes no workers; resume it first"
        )
    config = RunConfig.model_validate(run.config)
    if not may_register(config, registration.role, registration.rank, registration.job_id):
        job = f" with job {registration.job_id!r}" if registration.job_id else ""
        raise ConflictError(
            f"run {run.id!r} has no place for {registration.role.value} "
            f"{registration.rank}{job}; its configuration names the roles and their number"
        )


def _job(session: Session, job_id: str | None) -> dict[str, Any] | None:
    if job_id is None:
        return None
    if job_id.startswith("export-"):
        export = exports.get(session, job_id)
        return {
            **export_view(export).model_dump(mode="json"),
            "checkpoints": export.checkpoints,
            "include": export.include,
            "verify_only": export.verify_only,
        }
    evaluation = evaluations.get(session, job_id)
    return {
        **evaluation_view(evaluation).model_dump(mode="json"),
        "num_prompts": evaluation.num_prompts,
        "final": evaluation.final,
    }
