"""What a run has shown so far: series, report, log lines, checkpoints, evaluations, exports."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Query, Response, status
from sqlmodel import Session

from control_plane.http.documentation import problems
from control_plane.http.paging import CursorParam, LimitParam, make_cursor, read_cursor
from control_plane.http.state import Mesh
from control_plane.log_files import read_logs
from control_plane.routes.models import LogsView, MetricsView, ReportView, SeriesPoint, SeriesView
from control_plane.store import evaluations, exports, ledger, runs, series, workers
from control_plane.store.views import checkpoint_view, evaluation_view, export_view, slot_views
from shared.api.exports import ExportView
from shared.api.runs import CheckpointView, EvaluationRequest, EvaluationView, Page, WorkerView
from shared.states import Role

router = APIRouter(prefix="/v1/runs/{run_id}", tags=["runs"])

T = TypeVar("T")
MAX_STEP = 2**53


@router.get("/metrics", summary="Series, down-sampled", openapi_extra=problems(404))
async def get_metrics(
    run_id: str,
    mesh: Mesh,
    names: Annotated[
        str | None, Query(max_length=2000, description="Comma-separated; all when not given")
    ] = None,
    since: Annotated[int | None, Query(ge=0, le=MAX_STEP, description="First step")] = None,
    points: Annotated[int, Query(ge=2, le=5000, description="At most so many of each")] = 500,
) -> MetricsView:
    wanted = None if names is None else [name for name in names.split(",") if name]
    return await mesh.database.read(_metrics, run_id, wanted, since, points)


@router.get("/report", summary="The data-quality report", openapi_extra=problems(404))
async def get_report(run_id: str, mesh: Mesh) -> ReportView:
    run = await mesh.database.read(runs.get, run_id)
    return ReportView(run_id=run.id, overrides=run.overrides, report=run.gate_report)


@router.get("/logs", summary="The last lines of the workers' logs", openapi_extra=problems(404))
async def get_logs(
    run_id: str,
    mesh: Mesh,
    role: Annotated[Role | None, Query()] = None,
    rank: Annotated[int | None, Query(ge=0, le=9999)] = None,
    level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, Query(description="This and above")
    ] = None,
    tail: Annotated[int, Query(ge=1, le=5000)] = 200,
) -> LogsView:
    run = await mesh.database.read(runs.get, run_id)
    folder = mesh.settings.folder.run(run.id)
    return await asyncio.to_thread(
        read_logs, folder.logs, role=role, rank=rank, level=level, tail=tail
    )


@router.get(
    "/workers",
    summary="The run's slots, each by its newest incarnation",
    description="GET /v1/workers?run_id= lists every incarnation.",
    openapi_extra=problems(404),
)
async def list_slots(run_id: str, mesh: Mesh) -> Page[WorkerView]:
    await mesh.database.read(runs.get, run_id)
    incarnations = await mesh.database.read(workers.list_for_run, run_id)
    return Page(items=slot_views(incarnations, time.time()))


@router.get("/checkpoints", summary="Checkpoints that exist", openapi_extra=problems(404))
async def list_checkpoints(
    run_id: str, mesh: Mesh, limit: LimitParam = 50, cursor: CursorParam = None
) -> Page[CheckpointView]:
    await mesh.database.read(runs.get, run_id)
    rows = await mesh.database.read(ledger.list_checkpoints, run_id)
    keys = [(float(row.step), "") for row in rows]
    views = [checkpoint_view(row) for row in rows]
    return _page(views, keys, limit, cursor)


@router.get("/evaluations", summary="Evaluations, oldest first", openapi_extra=problems(404))
async def list_evaluations(
    run_id: str, mesh: Mesh, limit: LimitParam = 50, cursor: CursorParam = None
) -> Page[EvaluationView]:
    await mesh.database.read(runs.get, run_id)
    rows = await mesh.database.read(evaluations.list_for_run, run_id)
    keys = [(row.created_at, row.id) for row in rows]
    views = [evaluation_view(row) for row in rows]
    return _page(views, keys, limit, cursor)


@router.post(
    "/evaluations",
    status_code=status.HTTP_202_ACCEPTED,
    summary="Measure the acceptance length of a checkpoint",
    openapi_extra=problems(404, 409),
)
async def start_evaluation(
    run_id: str, response: Response, mesh: Mesh, request: EvaluationRequest | None = None
) -> EvaluationView:
    evaluation_id = await mesh.controller.start_evaluation(run_id, request or EvaluationRequest())
    response.headers["Location"] = f"/v1/runs/{run_id}/evaluations"
    return evaluation_view(await mesh.database.read(evaluations.get, evaluation_id))


@router.get("/exports", summary="Exports, oldest first", openapi_extra=problems(404))
async def list_exports(
    run_id: str, mesh: Mesh, limit: LimitParam = 50, cursor: CursorParam = None
) -> Page[ExportView]:
    await mesh.database.read(runs.get, run_id)
    rows = await mesh.database.read(exports.list_for_run, run_id)
    keys = [(row.created_at, row.id) for row in rows]
    views = [export_view(row) for row in rows]
    return _page(views, keys, limit, cursor)


def _metrics(
    session: Session, run_id: str, wanted: list[str] | None, since: int | None, points: int
) -> MetricsView:
    runs.get(session, run_id)
    known = series.names(session, run_id)
    shown = known if wanted is None else [name for name in known if name in wanted]
    return MetricsView(
        names=known,
        items=[
            SeriesView(
                name=name,
                points=[
                    SeriesPoint(step=point.step, t=point.t, value=point.value)
                    for point in series.read(session, run_id, name, since=since, points=points)
                ],
            )
            for name in shown
        ],
    )


def _page(views: list[T], keys: list[tuple[float, str]], limit: int, cursor: str | None) -> Page[T]:
    after = read_cursor(cursor)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    views, keys = [views[i] for i in order], [keys[i] for i in order]
    start = 0 if after is None else sum(key <= after for key in keys)
    more = len(views) > start + limit
    return Page(
        items=views[start : start + limit],
        next_cursor=make_cursor(*keys[start + limit - 1]) if more else None,
    )
