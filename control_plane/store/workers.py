"""The registry: one row for each incarnation of a worker.

A slot is (run, role, rank, job). The incarnation that was launched last holds the slot's lease;
an older one is refused with SupersededError and must exit. A row ends once (`ended_at`), and its
`state` then says how.
"""

from __future__ import annotations

from sqlalchemy import tuple_
from sqlmodel import Session, col, select

from control_plane.store import runs
from control_plane.store.ids import made_order, new_worker_id
from control_plane.store.tables import Worker
from shared.api.workers import Heartbeat, WorkerRegistration
from shared.errors import NotFoundError, SupersededError
from shared.states import DesiredState, Role, WorkerState


def add_launch(
    session: Session,
    *,
    run_id: str,
    role: Role,
    rank: int,
    incarnation: str,
    job_id: str | None,
    device: str,
    restarts: int,
    now: float,
    desired: DesiredState = DesiredState.RUN,
    launched: bool = False,
) -> Worker:
    """Record an incarnation before its process starts; older ones of the slot lose the lease."""
    worker = Worker(
        id=new_worker_id(role.value, rank, incarnation),
        run_id=run_id,
        role=role.value,
        rank=rank,
        incarnation=incarnation,
        job_id=job_id,
        device=device,
        state=WorkerState.STARTING.value,
        desired=desired.value,
        launched_at=now,
        restarts=restarts,
        launched=launched,
    )
    _supersede(session, run_id, role, rank, job_id, now=now)
    session.add(worker)
    session.flush()
    return worker


def set_process(session: Session, worker_id: str, *, host: str, pid: int, pid_birth: str) -> Worker:
    """Record the process that the launcher started."""
    worker = get(session, worker_id)
    worker.host, worker.pid, worker.pid_birth = host, pid, pid_birth
    session.add(worker)
    return worker


def register(session: Session, registration: WorkerRegistration, *, now: float) -> Worker:
    """The row of this incarnation, made if it is new; registering again changes nothing else.

    Raises NotFoundError when there is no such run, SupersededError when the incarnation has
    ended or a newer one of its slot was launched.
    """
    runs.get(session, registration.run_id)
    worker = find_incarnation(session, registration)
    if worker is None:
        worker = add_launch(
            session,
            run_id=registration.run_id,
            role=registration.role,
            rank=registration.rank,
            incarnation=registration.incarnation,
            job_id=registration.job_id,
            device=registration.device,
            restarts=0,
            now=now,
        )
    _check_lease(worker)
    if not worker.launched or worker.pid is None:
        worker.host, worker.pid = registration.host, registration.pid
        worker.pid_birth = registration.pid_birth
    worker.device = registration.device
    worker.registered_at = worker.registered_at or now
    worker.heartbeat_at = now
    session.add(worker)
    session.flush()
    return worker


def find_incarnation(session: Session, registration: WorkerRegistration) -> Worker | None:
    """The row of the registering incarnation, if it was launched here or registered before."""
    return session.exec(
        select(Worker).where(
            Worker.run_id == registration.run_id,
            Worker.role == registration.role.value,
            Worker.rank == registration.rank,
            Worker.incarnation == registration.incarnation,
        )
    ).first()


def heartbeat(session: Session, worker_id: str, beat: Heartbeat, *, now: float) -> Worker:
    """Store what the worker says of itself. A beat older than one stored only renews the lease.

    Raises NotFoundError for an unknown worker, SupersededError for one that lost its lease.
    `acked_events` is left to the caller, who stores the events.
    """
    worker = get(session, worker_id)
    if worker.incarnation != beat.incarnation:
        raise SupersededError(
            f"worker {worker_id!r} has incarnation {worker.incarnation}, not {beat.incarnation}"
        )
    _check_lease(worker)
    worker.heartbeat_at = now
    if beat.seq >= worker.heartbeat_seq:
        worker.heartbeat_seq = beat.seq
        worker.state = beat.state.value
        worker.endpoints, worker.progress = dict(beat.endpoints), dict(beat.progress)
        worker.metrics = dict(beat.metrics)
        worker.queues = [queue.model_dump() for queue in beat.queues]
        worker.waits_for = beat.waits_for
        worker.last_error = beat.last_error or worker.last_error
    session.add(worker)
    session.flush()
    return worker


def acknowledge(session: Session, worker_id: str, acked_events: int) -> None:
    """Events with a smaller number are stored."""
    worker = get(session, worker_id)
    worker.acked_events = max(worker.acked_events, acked_events)
    session.add(worker)


def set_desired(session: Session, worker_ids: list[str], desired: DesiredState) -> None:
    for worker_id in worker_ids:
        worker = get(session, worker_id)
        worker.desired = desired.value
        session.add(worker)


def end(
    session: Session,
    worker_id: str,
    *,
    state: WorkerState,
    reason: str,
    now: float,
    exit_code: int | None = None,
    last_error: str | None = None,
) -> Worker:
    """The incarnation is over; a second call changes nothing."""
    worker = get(session, worker_id)
    if worker.ended_at is None:
        worker.ended_at, worker.state, worker.end_reason = now, state.value, reason
        worker.exit_code = exit_code
        worker.last_error = last_error or worker.last_error
        session.add(worker)
        session.flush()
    return worker


def discard(session: Session, worker_id: str) -> None:
    """The process of this launch never came to be: forget the row."""
    session.delete(get(session, worker_id))


def get(session: Session, worker_id: str) -> Worker:
    """The worker; NotFoundError when there is none with this id."""
    worker = session.get(Worker, worker_id)
    if worker is None:
        raise NotFoundError(f"there is no worker {worker_id!r}; register first")
    return worker


def list_for_run(session: Session, run_id: str, *, live_only: bool = False) -> list[Worker]:
    """Incarnations of a run in order of launch; with `live_only` those that have not ended."""
    query = select(Worker).where(Worker.run_id == run_id).order_by(made_order(Worker))
    if live_only:
        query = query.where(col(Worker.ended_at).is_(None))
    return list(session.exec(query))


def list_page(
    session: Session,
    *,
    limit: int,
    before: tuple[float, str] | None = None,
    run_id: str | None = None,
    live_only: bool = False,
) -> list[Worker]:
    """Launched last first; `before` is (launched_at, id) of the last one of the page before."""
    query = (
        select(Worker).order_by(col(Worker.launched_at).desc(), col(Worker.id).desc()).limit(limit)
    )
    if before is not None:
        query = query.where(tuple_(col(Worker.launched_at), col(Worker.id)) < before)
    if run_id is not None:
        query = query.where(Worker.run_id == run_id)
    if live_only:
        query = query.where(col(Worker.ended_at).is_(None))
    return list(session.exec(query))


def _check_lease(worker: Worker) -> None:
    if worker.ended_at is not None:
        raise SupersededError(
            f"worker {worker.id!r} has ended ({worker.end_reason or worker.state}); exit"
        )


def _supersede(
    session: Session, run_id: str, role: Role, rank: int, job_id: str | None, *, now: float
) -> None:
    query = select(Worker).where(
        Worker.run_id == run_id,
        Worker.role == role.value,
        Worker.rank == rank,
        Worker.job_id == job_id,
        col(Worker.ended_at).is_(None),
    )
    for worker in session.exec(query):
        worker.ended_at, worker.end_reason = now, "superseded by a newer incarnation"
        worker.state = WorkerState.EXITED.value
        session.add(worker)
    session.flush()


def runs_with_live(session: Session) -> set[str]:
    """Ids of the runs that have incarnations which have not ended."""
    query = select(Worker.run_id).where(col(Worker.ended_at).is_(None)).distinct()
    return set(session.exec(query))
