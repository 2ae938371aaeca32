"""Probes, version, Prometheus metrics."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from control_plane import metrics
from control_plane.http.documentation import problems
from control_plane.http.state import Mesh
from control_plane.routes.models import HealthView, VersionView
from control_plane.version import program_version

router = APIRouter(tags=["system"])


@router.get("/healthz", summary="The process lives")
async def healthz() -> HealthView:
    return HealthView(status="ok")


@router.get(
    "/readyz",
    summary="The database answers, and takes what is written",
    openapi_extra=problems(503),
)
async def readyz(mesh: Mesh) -> HealthView:
    await mesh.database.check()
    return HealthView(status="ready")


@router.get("/version", summary="Version of the program and of the interface")
async def version() -> VersionView:
    return VersionView(version=program_version())


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"description": "Text format", "content": {"text/plain": {}}}},
)
async def prometheus(mesh: Mesh) -> Response:
    facts = await mesh.database.read(metrics.gather)
    return Response(
        metrics.render(facts, program_version()), headers={"Content-Type": metrics.CONTENT_TYPE}
    )
