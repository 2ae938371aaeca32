"""Slots: what the successive incarnations of a worker have in common."""

from __future__ import annotations

from collections.abc import Iterable

from control_plane.store.tables import Worker


def slot_of(worker: Worker) -> tuple[str, str, int, str | None]:
    """(run, role, rank, job) of an incarnation."""
    return (worker.run_id, worker.role, worker.rank, worker.job_id)


def newest_of_slots(workers: Iterable[Worker]) -> list[Worker]:
    """Of incarnations in order of launch, the last one of each slot."""
    return list({slot_of(worker): worker for worker in workers}.values())
