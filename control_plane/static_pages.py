"""The status page: a route for each packaged file, so that nothing else can be asked for."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

STATIC_FOLDER = Path(__file__).parent / "static"
_HEADERS = {
    # uPlot sets widths through style attributes; scripts come from this server alone.
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
}


def install_page(app: FastAPI, folder: Path = STATIC_FOLDER) -> None:
    """Serve index.html at `/` and every file below the folder at its own path."""
    files = StaticFiles(directory=folder, check_dir=False)

    async def serve(request: Request) -> Response:
        name = request.url.path.lstrip("/") or "index.html"
        response = await files.get_response(name, request.scope)
        response.headers.update(_HEADERS)
        return response

    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            app.add_route(f"/{name}", serve, methods=["GET"], include_in_schema=False)
    app.add_route("/", serve, methods=["GET"], include_in_schema=False)
