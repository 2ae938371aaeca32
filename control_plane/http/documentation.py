"""The OpenAPI document: every operation with the problems it can answer and its headers.

Routes name the statuses that are theirs (`problems(404, 409)`); those of the layers around the
routes are added here, so that the document says everything that can come back.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from control_plane.http.access import SESSION_PATH
from control_plane.http.sessions import COOKIE
from shared.api.problems import CONTENT_TYPE, Problem

_KEY = "x-problem-statuses"
_DESCRIPTIONS = {
    400: "The request cannot be read",
    401: "The token is missing or wrong",
    403: "Host, origin or destination not allowed",
    404: "There is no such thing",
    408: "The body comes too slowly",
    409: "The state does not allow it",
    413: "The body is too large",
    415: "The body is not declared as JSON",
    422: "A field is wrong, or the Idempotency-Key belongs to another request",
    500: "An error inside the control plane",
    502: "A server that is called fails",
    503: "Disk, database or another part of the environment fails",
    504: "A server that is called does not answer in time",
    507: "The disk is full",
}
_SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"session": []}]
# What a created thing can be used with: (path, status) -> parameter, where from, operations.
_LINKS: dict[tuple[str, str], tuple[str, str, tuple[str, ...]]] = {
    ("/v1/runs", "202"): (
        "run_id",
        "$response.body#/id",
        ("get_run", "get_metrics", "stop_run", "start_export", "delete_run"),
    ),
    ("/v1/runs/{run_id}/exports", "202"): (
        "export_id",
        "$response.body#/id",
        ("get_export", "get_archive", "verify_export", "cancel_export"),
    ),
    ("/v1/workers", "201"): (
        "worker_id",
        "$response.body#/worker_id",
        ("heartbeat", "leave"),
    ),
}


def problems(*statuses: int) -> dict[str, Any]:
    """`openapi_extra` of a route that answers these statuses of its own."""
    return {_KEY: list(statuses)}


def install_openapi(app: FastAPI, version: str) -> None:
    """Make `app.openapi()` the complete document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, version)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, version: str) -> dict[str, Any]:
    tree = get_openapi(
        title="dflash-mesh",
        version=version,
        summary="Runs, workers, exports and metrics of a control plane",
        routes=app.routes,
    )
    components = tree.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    reference = "#/components/schemas/{model}"
    problem = Problem.model_json_schema(ref_template=reference)
    schemas.update(problem.pop("$defs", {}))
    schemas["Problem"] = problem
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
    }
    for path, methods in tree["paths"].items():
        for method, operation in methods.items():
            _complete(path, method, operation)
    for (path, status), (parameter, expression, operation_ids) in _LINKS.items():
        tree["paths"][path]["post"]["responses"][status]["links"] = {
            name: {"operationId": name, "parameters": {parameter: expression}}
            for name in operation_ids
        }
    return tree


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is given or left out; there is no way to send null in a query or a header."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**kinds[0], **rest}


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    statuses = {403, 500, *operation.pop(_KEY, [])}
    responses = operation.setdefault("responses", {})
    responses.pop("422", None)
    if path.startswith("/v1") or path == "/metrics":
        statuses |= {503}
        if path != SESSION_PATH:
            statuses |= {401}
            operation["security"] = _SECURITY
    parameters = operation.setdefault("parameters", [])
    for parameter in parameters:
        parameter["schema"] = _without_null(parameter["schema"])
    if parameters:
        statuses |= {422}
    if any(parameter["name"] == "cursor" for parameter in parameters):
        statuses |= {400}
    if method in ("post", "put", "delete"):
        statuses |= {400, 408, 413, 415}
    if method == "post" and path != SESSION_PATH:
        statuses |= {422}
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "The same key and request gives the first answer again",
                "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
            }
        )
    if "requestBody" in operation:
        statuses |= {422}
    content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status in sorted(statuses):
        responses[str(status)] = {"description": _DESCRIPTIONS[status], "content": content}
