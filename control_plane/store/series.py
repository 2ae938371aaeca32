"""Series of a run: (name, step) -> value, down-sampled on the way out.

Training figures are stored by optimizer step; figures over time (tokens/s, queue depths) by whole
seconds since the run's creation. A replayed step replaces its row, so a series never holds two
values of one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import delete
from sqlalchemy.dialects.sqlite import insert
from sqlmodel import Session, col, select

from control_plane.store.tables import Point


@dataclass(frozen=True)
class Sample:
    """A value to store; `t` in seconds since the epoch."""

    name: str
    step: int
    t: float
    value: float


def add(session: Session, run_id: str, samples: Iterable[Sample]) -> int:
    """Store finite values, replacing those of the same name and step; how many were stored."""
    rows = [
        {"run_id": run_id, "name": s.name, "step": s.step, "t": s.t, "value": s.value}
        for s in samples
        if math.isfinite(s.value)
    ]
    if rows:
        statement = insert(Point)
        session.execute(
            statement.on_conflict_do_update(
                index_elements=["run_id", "name", "step"],
                set_={"t": statement.excluded.t, "value": statement.excluded.value},
            ),
            rows,
        )
    return len(rows)


def truncate(session: Session, run_id: str, names: list[str], after_step: int) -> int:
    """Forget values of the named series beyond `after_step`; how many."""
    result = session.exec(
        delete(Point).where(
            col(Point.run_id) == run_id, col(Point.name).in_(names), col(Point.step) > after_step
        )
    )
    return result.rowcount


def names(session: Session, run_id: str) -> list[str]:
    query = select(Point.name).where(Point.run_id == run_id).distinct().order_by(Point.name)
    return list(session.exec(query))


def read(
    session: Session, run_id: str, name: str, *, since: int | None = None, points: int = 500
) -> list[Point]:
    """One series from step `since` on, at most about `points` values, peaks preserved."""
    query = (
        select(Point).where(Point.run_id == run_id, Point.name == name).order_by(col(Point.step))
    )
    if since is not None:
        query = query.where(Point.step >= since)
    return downsample(list(session.exec(query)), points)


def downsample(values: list[Point], points: int) -> list[Point]:
    """First, last, and of each bucket between the lowest and the highest value, in order.

    At most max(points, 2) values come back, and no peak gets lost.
    """
    if len(values) <= max(points, 2):
        return values
    inner = values[1:-1]
    num_buckets = (points - 2) // 2
    kept = [values[0]]
    for bucket in range(num_buckets):
        low = bucket * len(inner) // num_buckets
        high = (bucket + 1) * len(inner) // num_buckets
        part = inner[low:high]
        extremes = {
            min(range(len(part)), key=lambda i: part[i].value),
            max(range(len(part)), key=lambda i: part[i].value),
        }
        kept.extend(part[index] for index in sorted(extremes))
    return [*kept, values[-1]]
