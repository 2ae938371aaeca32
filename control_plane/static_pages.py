"""The status page: a route for each packaged file, so that nothing else can be asked for."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

STATIC_FOLDER = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
}


def install_page(app: FastAPI, folder: Path = STATIC_FOLDER) -> list[Route]:
    """Serve index.html at `/` and every file below the folder at its own path; the routes."""
    files = StaticFiles(directory=folder, check_dir=False)

    async def serve(request: Request) -> Response:
        name = request.url.path.lstrip("/") or "index.html"
        response = await files.get_response(name, request.scope)
        response.headers.update(_HEADERS)
        return response

    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = ["", *(path.relative_to(folder).as_posix() for path in found)]
    routes = [Route(f"/{name}", serve, methods=["GET"], include_in_schema=False) for name in names]
    app.router.routes.extend(routes)
    return routes
