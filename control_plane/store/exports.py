"""Export jobs: request, progress, result, cancellation, verification."""

from __future__ import annotations

from typing import Any

from sqlmodel import Session, col, select

from control_plane.store import events, runs
from control_plane.store.ids import made_order, new_job_id
from control_plane.store.tables import Export
from control_plane.store.views import export_view
from shared.api.events import ExportProgress
from shared.api.exports import ExportRequest
from shared.errors import ConflictError, NotFoundError
from shared.states import Stage

ENDED = frozenset({"completed", "failed", "cancelled", "superseded"})


def create(
    session: Session, run_id: str, request: ExportRequest, *, destination: str, now: float
) -> Export:
    """A queued export of a run to a resolved destination."""
    run = runs.get(session, run_id)
    export = Export(
        id=new_job_id("export"),
        run_id=run_id,
        state="queued",
        destination=destination,
        checkpoints=request.checkpoints,
        include=list(request.parts(trains=Stage.TRAIN in run.config.get("stages", []))),
        created_at=now,
    )
    session.add(export)
    session.flush()
    _announce(session, export, now)
    return export


def get(session: Session, export_id: str) -> Export:
    export = session.get(Export, export_id)
    if export is None:
        raise NotFoundError(f"there is no export {export_id!r}")
    return export


def list_for_run(session: Session, run_id: str) -> list[Export]:
    """Exports of a run, oldest first."""
    query = select(Export).where(Export.run_id == run_id)
    return list(session.exec(query.order_by(made_order(Export))))


def list_open(session: Session) -> list[Export]:
    """Exports that have not ended, oldest first."""
    query = select(Export).where(col(Export.state).not_in(ENDED))
    return list(session.exec(query.order_by(made_order(Export))))


def record_progress(
    session: Session, progress: ExportProgress, *, now: float, announce: bool = True
) -> Export:
    """Store the archiver's figures; an export that has ended takes no more of them."""
    export = get(session, progress.export_id)
    if export.state in ENDED:
        return export
    fields: dict[str, Any] = progress.model_dump(exclude={"type", "number", "export_id"})
    for name, value in fields.items():
        setattr(export, name, value)
    export.started_at = export.started_at or now
    if export.state in ENDED:
        export.ended_at = now
    return _store(session, export, now, announce=announce)


def end(
    session: Session, export_id: str, *, state: str, now: float, problem: str | None = None
) -> Export:
    """The control plane ends an export itself (cancelled before it started, archiver failed)."""
    export = get(session, export_id)
    if export.state in ENDED:
        return export
    export.state, export.ended_at = state, now
    if problem is not None:
        export.problems = [*export.problems, problem]
    return _store(session, export, now)


def request_cancel(session: Session, export_id: str, *, now: float) -> Export:
    """Ask for the end of an export; one that has ended stays as it is."""
    export = get(session, export_id)
    if export.state in ENDED or export.cancel_requested:
        return export
    export.cancel_requested = True
    return _store(session, export, now)


def request_verify(session: Session, export_id: str, *, now: float) -> Export:
    """Queue an ended export for another check of what lies at its destination.

    ConflictError while it is still running or when it never completed.
    """
    export = get(session, export_id)
    if export.manifest_sha256 is None or export.state not in ENDED:
        raise ConflictError(
            f"export {export_id!r} is {export.state} and has no manifest to verify against; "
            "only a completed export can be checked again"
        )
    export.state, export.verify_only, export.cancel_requested = "queued", True, False
    export.ended_at, export.conflicts, export.problems = None, [], []
    export.files_done = export.bytes_done = 0
    return _store(session, export, now)


def _store(session: Session, export: Export, now: float, *, announce: bool = True) -> Export:
    session.add(export)
    session.flush()
    if announce:
        _announce(session, export, now)
    return export


def _announce(session: Session, export: Export, now: float) -> None:
    data = export_view(export).model_dump(mode="json")
    events.append(session, export.run_id, "export", data, now=now)
