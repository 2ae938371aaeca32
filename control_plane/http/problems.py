"""Errors as application/problem+json (RFC 9457): one shape for every error of the interface.

`MeshError` keeps its slug, status and fields; FastAPI's and Starlette's own errors get a slug of
their status. Nothing of the request's body is repeated in an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from shared.api.problems import CONTENT_TYPE, TYPE_PREFIX, Problem, ProblemField
from shared.errors import FieldError, MeshError

_SLUGS = {
    400: "bad-request",
    401: "unauthenticated",
    403: "forbidden-origin",
    404: "not-found",
    405: "method-not-allowed",
    408: "body-too-slow",
    413: "body-too-large",
    415: "unsupported-media-type",
    422: "invalid-request",
}
# Control characters and lone surrogates have no place in a message that is shown to people.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_LISTED_FIELDS = 100


def problem_response(
    status: int,
    detail: str,
    *,
    instance: str,
    slug: str | None = None,
    title: str | None = None,
    errors: Iterable[FieldError] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem document; slug and title follow the status unless given."""
    problem = Problem(
        type=TYPE_PREFIX + (slug or _SLUGS.get(status, "internal" if status >= 500 else "error")),
        title=title or HTTPStatus(status).phrase,
        status=status,
        detail=_printable(detail),
        instance=_printable(instance),
        errors=[
            ProblemField(
                field=_printable(error.field),
                message=_printable(error.message),
                suggestion=error.suggestion,
            )
            for error in list(errors)[:_LISTED_FIELDS]
        ],
    )
    return Response(problem.model_dump_json(), status, headers, media_type=CONTENT_TYPE)


def mesh_error_response(error: MeshError, instance: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    if error.retryable:
        headers["Retry-After"] = "2"
    return problem_response(
        error.status,
        error.detail,
        instance=instance,
        slug=error.slug,
        title=error.title,
        errors=error.errors,
        headers=headers,
    )


def instance_of(scope: Scope) -> str:
    """The path of the request, percent-encoded as a URI reference."""
    return quote(scope.get("path", "/"), safe="/:@!$&'()*+,;=-._~")


def install_handlers(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Answer every error that a route raises with a problem document.

    `routes` are all routes of the app, one by one, for the Allow header of 405.
    """

    @app.exception_handler(MeshError)
    async def mesh_error(request: Request, error: MeshError) -> Response:
        return mesh_error_response(error, instance_of(request.scope))

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> Response:
        fields = [_field_error(item) for item in error.errors()]
        count = f"{len(fields)} field{'s' if len(fields) != 1 else ''}"
        return problem_response(
            422,
            f"the request has {count} to correct",
            instance=instance_of(request.scope),
            title="Invalid request",
            errors=fields,
        )

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        method, path = request.method, instance_of(request.scope)
        headers = dict(error.headers or {})
        detail = str(error.detail)
        if error.status_code == 404:
            detail = f"there is nothing at {path}; /docs lists the calls"
        if error.status_code == 405:
            allowed = allowed_methods(routes, request.scope)
            headers["Allow"] = ", ".join(allowed)
            detail = f"{path} does not take {method}; it takes {', '.join(allowed)}"
        return problem_response(error.status_code, detail, instance=path, headers=headers)


def allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> list[str]:
    """Methods of every route whose path matches the request's."""
    methods: set[str] = set()
    for route in routes:
        match, _ = route.matches({**scope, "method": "OPTIONS-OF-NO-ROUTE"})
        if match is Match.PARTIAL:
            methods |= set(getattr(route, "methods", None) or ())
    return sorted(methods)


def _field_error(item: Mapping[str, Any]) -> FieldError:
    location: Sequence[Any] = item["loc"]
    path = ".".join(str(part) for part in location) or "request"
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        message = "unknown field"
    return FieldError(path[:300], message[:500])


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
