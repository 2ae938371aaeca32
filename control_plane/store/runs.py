"""Runs: create, read, change state, update figures, forget.

The state changes only in `transition`: it reads the current state inside a write transaction
(which excludes every other writer), asks shared.states.next_state, writes the new state under a
compare-and-set on `version`, and appends the `run` event in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import func, tuple_
from sqlalchemy import update as sql_update
from sqlmodel import Session, col, select

from control_plane.store import events
from control_plane.store.tables import Run
from control_plane.store.views import run_view
from shared.errors import ConflictError, NotFoundError
from shared.states import ENDED_STATES, RunEvent, RunState, next_state

_FIXED = frozenset({"id", "state", "version", "created_at", "config", "config_sha256"})


def create(
    session: Session,
    *,
    run_id: str,
    name: str,
    config: dict[str, Any],
    config_sha256: str,
    progress: dict[str, Any],
    now: float,
    max_queued: int | None = None,
) -> Run:
    """A new run, queued; ConflictError when `max_queued` runs wait already."""
    if max_queued is not None:
        num_queued = count_in_states(session, [RunState.QUEUED])
        if num_queued >= max_queued:
            raise ConflictError(
                f"{num_queued} runs wait already, the most this control plane takes; wait until "
                "some have started, stop some, or start it with a larger --max-queued-runs"
            )
    run = Run(
        id=run_id,
        name=name,
        state=RunState.QUEUED.value,
        created_at=now,
        updated_at=now,
        config=config,
        config_sha256=config_sha256,
        progress=progress,
    )
    session.add(run)
    session.flush()
    _announce(session, run, now)
    return run


def find(session: Session, run_id: str) -> Run | None:
    return session.get(Run, run_id)


def get(session: Session, run_id: str) -> Run:
    """The run; NotFoundError when there is none with this id."""
    run = find(session, run_id)
    if run is None:
        raise NotFoundError(
            f"there is no run {run_id!r}; 'dflash-mesh run list' or GET /v1/runs lists them"
        )
    return run


def list_page(
    session: Session,
    *,
    limit: int,
    before: tuple[float, str] | None = None,
    state: RunState | None = None,
) -> list[Run]:
    """Newest first; `before` is (created_at, id) of the last one of the page before."""
    query = select(Run).order_by(col(Run.created_at).desc(), col(Run.id).desc()).limit(limit)
    if before is not None:
        query = query.where(tuple_(col(Run.created_at), col(Run.id)) < before)
    if state is not None:
        query = query.where(Run.state == state.value)
    return list(session.exec(query))


def list_in_states(session: Session, states: Iterable[RunState]) -> list[Run]:
    """Runs in any of the states, oldest first."""
    query = (
        select(Run)
        .where(col(Run.state).in_([state.value for state in states]))
        .order_by(col(Run.created_at), col(Run.id))
    )
    return list(session.exec(query))


def count_in_states(session: Session, states: Iterable[RunState]) -> int:
    query = select(func.count()).where(col(Run.state).in_([state.value for state in states]))
    return session.exec(query).one()


def list_queued(session: Session) -> list[str]:
    """Ids of the runs that wait, oldest first."""
    query = select(Run.id).where(Run.state == RunState.QUEUED.value)
    return list(session.exec(query.order_by(col(Run.created_at), col(Run.id))))


def list_ids(session: Session) -> list[str]:
    """Ids of all runs."""
    return list(session.exec(select(Run.id)))


def transition(
    session: Session,
    /,
    run_id: str,
    event: RunEvent,
    *,
    now: float,
    reason: str | None = None,
    expected_state: RunState | None = None,
    **fields: Any,
) -> Run:
    """Move a run along its state machine, set `reason` and further columns, append an event.

    Raises NotFoundError; IllegalTransition when the state does not take the event;
    ConflictError when the run is not in `expected_state` any more.
    """
    run = get(session, run_id)
    state = RunState(run.state)
    if expected_state is not None and state is not expected_state:
        raise ConflictError(
            f"run {run_id!r} is {state.value}, no longer {expected_state.value}; look again"
        )
    new = next_state(state, event)
    values: dict[str, Any] = {"state": new.value, "reason": reason, **_checked(fields)}
    if event is RunEvent.LAUNCH and run.started_at is None:
        values["started_at"] = now
    values["ended_at"] = now if new in ENDED_STATES else None
    if new in ENDED_STATES:
        values |= {"stage": None, "bottleneck": None, "eta_s": None}
    _compare_and_set(session, run, values, now)
    _announce(session, run, now)
    return run


def update(
    session: Session, /, run_id: str, *, now: float, announce: bool = False, **fields: Any
) -> Run:
    """Set columns that describe the run (progress, loss, bottleneck, ...), not its state.

    With `announce` the change is also appended as an event.
    """
    run = get(session, run_id)
    _compare_and_set(session, run, _checked(fields), now)
    if announce:
        _announce(session, run, now)
    return run


def add_override(session: Session, run_id: str, gate: str, *, now: float) -> Run:
    """Record that a person has overridden a gate; once is enough."""
    run = get(session, run_id)
    if gate in run.overrides:
        return run
    return update(session, run_id, now=now, announce=True, overrides=[*run.overrides, gate])


def delete(session: Session, run_id: str) -> None:
    """Forget an ended run and all its rows. ConflictError while it has not ended."""
    run = get(session, run_id)
    if RunState(run.state) not in ENDED_STATES:
        raise ConflictError(f"run {run_id!r} is {run.state}; stop it before deleting it")
    session.delete(run)


def _compare_and_set(session: Session, run: Run, values: dict[str, Any], now: float) -> None:
    result = session.exec(
        sql_update(Run)
        .where(col(Run.id) == run.id, col(Run.version) == run.version)
        .values(**values, version=run.version + 1, updated_at=now)
        .execution_options(synchronize_session=False)
    )
    if result.rowcount != 1:
        raise ConflictError(f"run {run.id!r} was changed by someone else; look again")
    session.refresh(run)


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    wrong = sorted(set(fields) & _FIXED | set(fields) - set(Run.model_fields))
    assert not wrong, f"columns that cannot be set here: {wrong}"
    return fields


def _announce(session: Session, run: Run, now: float) -> None:
    events.append(session, run.id, "run", run_view(run).model_dump(mode="json"), now=now)
