"""Persisted events of a run: what its stream replays after `Last-Event-ID`.

Names: `run`, `log`, `checkpoint`, `evaluation`, `export`, `report`. Values of series and worker
tables are not kept here: they have tables of their own, and the stream sends them live only.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, func
from sqlmodel import Session, col, select

from control_plane.store.engine import EVENTS_KEY
from control_plane.store.tables import Event

KEEP_PER_RUN = 5000


def append(session: Session, run_id: str, name: str, data: dict[str, Any], *, now: float) -> Event:
    """Add an event; it is handed to the live streams when the transaction commits."""
    event = Event(run_id=run_id, name=name, data=data, created_at=now)
    session.add(event)
    session.flush()
    session.info.setdefault(EVENTS_KEY, []).append(event)
    return event


def list_after(session: Session, run_id: str, after_id: int, *, limit: int = 1000) -> list[Event]:
    """Events of a run with a greater id, oldest first."""
    query = (
        select(Event)
        .where(Event.run_id == run_id, col(Event.id) > after_id)
        .order_by(col(Event.id))
        .limit(limit)
    )
    return list(session.exec(query))


def list_last(session: Session, run_id: str, names: list[str], *, limit: int) -> list[Event]:
    """The last events of the given names, oldest first."""
    query = (
        select(Event)
        .where(Event.run_id == run_id, col(Event.name).in_(names))
        .order_by(col(Event.id).desc())
        .limit(limit)
    )
    return list(session.exec(query))[::-1]


def last_id(session: Session, run_id: str) -> int:
    """The newest event's id; 0 when there is none."""
    newest = session.exec(select(func.max(Event.id)).where(Event.run_id == run_id)).one()
    return newest or 0


def prune(session: Session, run_id: str, *, keep: int = KEEP_PER_RUN) -> int:
    """Forget all but the newest `keep` events of a run; how many were forgotten."""
    boundary = session.exec(
        select(Event.id)
        .where(Event.run_id == run_id)
        .order_by(col(Event.id).desc())
        .offset(keep)
        .limit(1)
    ).first()
    if boundary is None:
        return 0
    result = session.exec(
        delete(Event).where(col(Event.run_id) == run_id, col(Event.id) <= boundary)
    )
    return result.rowcount
