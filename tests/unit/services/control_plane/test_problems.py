"""Problem documents become the errors they were."""

from __future__ import annotations

import httpx
import pytest

from services.control_plane import error_from_response
from shared.api.problems import TYPE_PREFIX
from shared.errors import ConfigError, FieldError, SupersededError, UpstreamError, UserError


def answer(status: int, **content: object) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "http://x/y"), **content)  # type: ignore[arg-type]


def problem(slug: str, status: int, **fields: object) -> httpx.Response:
    body = {
        "type": TYPE_PREFIX + slug,
        "title": "t",
        "status": status,
        "detail": "what was wrong",
        "instance": "/y",
        **fields,
    }
    return answer(status, json=body)


def test_the_class_is_found_by_its_slug() -> None:
    error = error_from_response(problem("superseded-worker", 409))
    assert type(error) is SupersededError
    assert error.detail == "what was wrong"


def test_fields_come_along() -> None:
    fields = [{"field": "a.b", "message": "unknown key", "suggestion": "a.c"}]
    error = error_from_response(problem("invalid-configuration", 422, errors=fields))
    assert type(error) is ConfigError
    assert error.errors == (FieldError("a.b", "unknown key", "a.c"),)


@pytest.mark.parametrize(("status", "kind"), [(404, UserError), (502, UpstreamError)])
def test_anything_else_names_status_and_body(status: int, kind: type[Exception]) -> None:
    error = error_from_response(answer(status, text="<html>proxy"))
    assert type(error) is kind
    assert str(status) in str(error)
    assert "<html>proxy" in str(error)


def test_an_unknown_slug_falls_back_by_status() -> None:
    assert type(error_from_response(problem("news", 418))) is UserError
    assert type(error_from_response(problem("news", 599))) is UpstreamError
