"""Exports: start, progress, cancel, check again, and the files as one stream."""

from __future__ import annotations

from fastapi import APIRouter, Response, status
from starlette.responses import StreamingResponse

from control_plane.archive import open_archive
from control_plane.http.documentation import problems
from control_plane.http.state import Mesh, MeshState
from control_plane.store import exports
from control_plane.store.views import export_view
from shared.api.exports import ExportRequest, ExportView
from shared.errors import ConflictError

router = APIRouter(prefix="/v1", tags=["exports"])

ACCEPTED = status.HTTP_202_ACCEPTED


@router.post(
    "/runs/{run_id}/exports",
    status_code=ACCEPTED,
    summary="Export artifacts; an empty body means the run's own store and the newest checkpoint",
    openapi_extra=problems(404, 409),
)
async def start_export(
    run_id: str, response: Response, mesh: Mesh, request: ExportRequest | None = None
) -> ExportView:
    export_id = await mesh.controller.start_export(run_id, request or ExportRequest())
    response.headers["Location"] = f"/v1/exports/{export_id}"
    return await _view(mesh, export_id)


@router.get("/exports/{export_id}", summary="Progress and result", openapi_extra=problems(404))
async def get_export(export_id: str, mesh: Mesh) -> ExportView:
    return await _view(mesh, export_id)


@router.delete(
    "/exports/{export_id}",
    status_code=ACCEPTED,
    summary="Cancel; an export that has ended stays as it is",
    openapi_extra=problems(404),
)
async def cancel_export(export_id: str, mesh: Mesh) -> ExportView:
    await mesh.controller.cancel_export(export_id)
    return await _view(mesh, export_id)


@router.post(
    "/exports/{export_id}/verify",
    status_code=ACCEPTED,
    summary="Read everything back and compare it with the manifest",
    openapi_extra=problems(404, 409),
)
async def verify_export(export_id: str, mesh: Mesh) -> ExportView:
    await mesh.controller.verify_export(export_id)
    return await _view(mesh, export_id)


@router.get(
    "/exports/{export_id}/archive",
    summary="The exported files as one tar stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-tar": {}}, "description": "A tar archive"}},
    openapi_extra=problems(404, 409, 502, 504),
)
async def get_archive(export_id: str, mesh: Mesh) -> StreamingResponse:
    export = await mesh.database.read(exports.get, export_id)
    if export.state != "completed":
        raise ConflictError(
            f"export {export_id!r} is {export.state}; its files can be fetched once it is completed"
        )
    archive = await open_archive(export)
    headers = {
        "Content-Disposition": f'attachment; filename="{archive.name}"',
        "Content-Length": str(archive.num_bytes),
    }
    return StreamingResponse(archive.stream(), headers=headers, media_type="application/x-tar")


async def _view(mesh: MeshState, export_id: str) -> ExportView:
    return export_view(await mesh.database.read(exports.get, export_id))
