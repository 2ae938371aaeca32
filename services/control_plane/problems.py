"""From an answer that is an error back to the class of `shared.errors` that was raised.

The last part of a problem's type is the slug of its class, so a caller catches the same class
that the control plane raised, with its message and its fields.
"""

from __future__ import annotations

import httpx
from pydantic import ValidationError

from shared.api.problems import TYPE_PREFIX, Problem
from shared.errors import FieldError, MeshError, UpstreamError, UserError


def _classes(root: type[MeshError]) -> dict[str, type[MeshError]]:
    found = {root.slug: root}
    for child in root.__subclasses__():
        found.update(_classes(child))
    return found


def error_from_response(response: httpx.Response) -> MeshError:
    """The error that `response` (status 400 and above) reports.

    A body that is not a problem document gives UserError (4xx) or UpstreamError (5xx) with the
    status and the beginning of the body.
    """
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        where = f"{response.request.method} {response.request.url}"
        detail = f"{where} answered {response.status_code}: {response.text[:200]}"
        return UserError(detail) if response.status_code < 500 else UpstreamError(detail)
    slug = problem.type.removeprefix(TYPE_PREFIX)
    fields = [FieldError(e.field, e.message, e.suggestion) for e in problem.errors]
    fallback = UserError if problem.status < 500 else UpstreamError
    return _classes(MeshError).get(slug, fallback)(problem.detail, errors=fields)
