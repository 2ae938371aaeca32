"""The registry protocol of workers, and the list of workers that people see."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, status

from control_plane.http.documentation import problems
from control_plane.http.paging import CursorParam, LimitParam, make_cursor, read_cursor
from control_plane.http.state import Mesh
from control_plane.store import workers
from control_plane.store.views import worker_view
from shared.api.runs import Page, WorkerView
from shared.api.workers import Heartbeat, HeartbeatAnswer, WorkerLease, WorkerRegistration

router = APIRouter(prefix="/v1/workers", tags=["workers"])


@router.get("", summary="Workers, launched last first")
async def list_workers(
    mesh: Mesh,
    limit: LimitParam = 100,
    cursor: CursorParam = None,
    run_id: Annotated[str | None, Query(max_length=200)] = None,
    live: Annotated[bool, Query(description="Only workers that have not ended")] = False,
) -> Page[WorkerView]:
    found = await mesh.database.read(
        workers.list_page,
        limit=limit + 1,
        before=read_cursor(cursor),
        run_id=run_id,
        live_only=live,
    )
    page = found[:limit]
    now = time.time()
    more = len(found) > limit
    return Page(
        items=[worker_view(worker, now) for worker in page],
        next_cursor=make_cursor(page[-1].launched_at, page[-1].id) if more else None,
    )


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    summary="Register an incarnation",
    openapi_extra=problems(404, 409),
)
async def register_worker(registration: WorkerRegistration, mesh: Mesh) -> WorkerLease:
    return await mesh.controller.register(registration)


@router.put(
    "/{worker_id}/heartbeat", summary="Report and renew the lease", openapi_extra=problems(404, 409)
)
async def heartbeat(worker_id: str, beat: Heartbeat, mesh: Mesh) -> HeartbeatAnswer:
    return await mesh.controller.heartbeat(worker_id, beat)


@router.delete(
    "/{worker_id}",
    status_code=status.HTTP_204_NO_CONTENT,
    summary="The worker has drained and leaves",
    openapi_extra=problems(404),
)
async def leave(
    worker_id: str, mesh: Mesh, reason: Annotated[str, Query(max_length=500)] = ""
) -> None:
    await mesh.controller.leave(worker_id, reason)
