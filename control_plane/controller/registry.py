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

from sqlalchemy import bindparam, select
from sqlmodel import Session, col

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
# Statements of every heartbeat, made once: making one costs more than running it.
_PEERS = (
    select(
        col(Worker.id),
        col(Worker.role),
        col(Worker.rank),
        col(Worker.incarnation),
        col(Worker.host),
        col(Worker.endpoints),
    )
    .where(
        col(Worker.run_id) == bindparam("own_run"),
        col(Worker.id) != bindparam("own_id"),
        col(Worker.job_id).is_(None),
        col(Worker.ended_at).is_(None),
        col(Worker.registered_at).is_not(None),
        col(Worker.state).not_in(_GONE),
    )
    .order_by(col(Worker.role), col(Worker.rank))
)
_PEERS_OF_FORWARD = _PEERS.where(col(Worker.role) != Role.TARGET_FORWARD.value)
_OVERRIDES = select(col(Run.overrides)).where(col(Run.id) == bindparam("own_run"))


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
    is_known = workers.find_incarnation(session, registration) is not None
    if not is_known:
        _check_wanted(run, registration)
    worker = workers.register(session, registration, now=now)
    return Registered(worker, run, _job(session, worker.job_id), peers_of(session, worker))


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
    overrides = session.execute(_OVERRIDES, {"own_run": worker.run_id}).scalar_one()
    answer = HeartbeatAnswer(
        desired=DesiredState(worker.desired),
        peers=peers_of(session, worker),
        acked_events=worker.acked_events,
        overrides=overrides,
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


def peers_of(session: Session, worker: Worker) -> list[Peer]:
    """Everybody else of the run that `worker` may have links with, in a fixed order.

    target_forward workers have none with each other, and there may be many of them.
    """
    query = _PEERS_OF_FORWARD if worker.role == Role.TARGET_FORWARD.value else _PEERS
    rows = session.execute(query, {"own_run": worker.run_id, "own_id": worker.id})
    return [
        Peer(
            worker_id=worker_id,
            role=Role(role),
            rank=rank,
            incarnation=incarnation,
            host=host,
            endpoints=endpoints,
        )
        for worker_id, role, rank, incarnation, host, endpoints in rows
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
