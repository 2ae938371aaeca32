"""Runs: start, list, look, act, forget."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response, status

from control_plane import submission
from control_plane.http.documentation import problems
from control_plane.http.etags import tagged_json
from control_plane.http.paging import CursorParam, LimitParam, make_cursor, read_cursor
from control_plane.http.state import Mesh, MeshState
from control_plane.routes.models import DryRunView
from control_plane.store import runs
from control_plane.store.views import run_view
from shared.api.runs import Page, RunRequest, RunView, StopRequest
from shared.config.loading import config_sha256
from shared.states import ENDED_STATES, RunAction, RunState, Stage

router = APIRouter(prefix="/v1/runs", tags=["runs"])

ACCEPTED = status.HTTP_202_ACCEPTED


@router.post(
    "",
    status_code=ACCEPTED,
    summary="Start a run",
    responses={200: {"model": DryRunView, "description": "Dry run: nothing was started"}},
    openapi_extra=problems(409, 507),
)
async def start_run(
    request: RunRequest,
    response: Response,
    mesh: Mesh,
    dry_run: Annotated[bool, Query(description="Answer configuration and forecast only")] = False,
) -> RunView | DryRunView:
    checked = await asyncio.to_thread(submission.check, request, mesh.settings)
    if dry_run:
        response.status_code = status.HTTP_200_OK
        return DryRunView(
            config=checked.config.model_dump(mode="json"),
            config_sha256=config_sha256(checked.config),
            forecast=await asyncio.to_thread(submission.forecast_of, checked, mesh.settings),
        )
    config = checked.config
    totals = {
        "completions_total": checked.preflight.num_training_prompts,
        "epochs_total": config.train.num_epochs if Stage.TRAIN in config.stages else 0,
    }
    run_id = await mesh.controller.submit(config, progress=totals)
    response.headers["Location"] = f"/v1/runs/{run_id}"
    return await _view(mesh, run_id)


@router.get("", summary="List runs, newest first")
async def list_runs(
    mesh: Mesh,
    limit: LimitParam = 50,
    cursor: CursorParam = None,
    state: Annotated[RunState | None, Query(description="Only runs in this state")] = None,
) -> Page[RunView]:
    found = await mesh.database.read(
        runs.list_page, limit=limit + 1, before=read_cursor(cursor), state=state
    )
    page = found[:limit]
    more = len(found) > limit
    return Page(
        items=[run_view(run, mesh.database.write_problem) for run in page],
        next_cursor=make_cursor(page[-1].created_at, page[-1].id) if more else None,
    )


@router.get(
    "/{run_id}",
    summary="One run",
    response_model=RunView,
    responses={304: {"description": "Unchanged since the ETag in If-None-Match"}},
    openapi_extra=problems(404),
)
async def get_run(
    run_id: str, mesh: Mesh, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    view = await _view(mesh, run_id)
    return tagged_json(view.model_dump_json().encode(), if_none_match)


@router.post(
    "/{run_id}/stop",
    status_code=ACCEPTED,
    summary="Drain, checkpoint, stop",
    responses={200: {"model": RunView, "description": "The run had ended already"}},
    openapi_extra=problems(404, 409),
)
async def stop_run(
    run_id: str, response: Response, mesh: Mesh, request: StopRequest | None = None
) -> RunView:
    run = await mesh.database.read(runs.get, run_id)
    if RunState(run.state) in ENDED_STATES:
        response.status_code = status.HTTP_200_OK
        return run_view(run)
    await mesh.controller.act(run_id, RunAction.STOP, (request or StopRequest()).mode)
    return await _view(mesh, run_id)


@router.post(
    "/{run_id}/pause",
    status_code=ACCEPTED,
    summary="Hold every worker with its state",
    openapi_extra=problems(404, 409),
)
async def pause_run(run_id: str, mesh: Mesh) -> RunView:
    await mesh.controller.act(run_id, RunAction.PAUSE)
    return await _view(mesh, run_id)


@router.post(
    "/{run_id}/resume",
    status_code=ACCEPTED,
    summary="Go on from what the run has; overrides a gate that blocked it",
    openapi_extra=problems(404, 409),
)
async def resume_run(run_id: str, mesh: Mesh) -> RunView:
    await mesh.controller.act(run_id, RunAction.RESUME)
    return await _view(mesh, run_id)


@router.delete(
    "/{run_id}",
    status_code=ACCEPTED,
    summary="Forget an ended run",
    openapi_extra=problems(404, 409),
)
async def delete_run(
    run_id: str,
    mesh: Mesh,
    files: Annotated[
        bool, Query(description="Remove also its files that are verified elsewhere")
    ] = False,
) -> RunView:
    view = await _view(mesh, run_id)
    await mesh.controller.delete_run(run_id, files=files)
    return view


async def _view(mesh: MeshState, run_id: str) -> RunView:
    run = await mesh.database.read(runs.get, run_id)
    return run_view(run, mesh.database.write_problem)
