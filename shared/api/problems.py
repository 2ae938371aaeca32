"""The body of every error: application/problem+json (RFC 9457)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:dflash-mesh:problem:"


class ProblemField(BaseModel):
    field: str
    message: str
    suggestion: str | None = None


class Problem(BaseModel):
    """`type` ends with the slug of the error class in shared.errors."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[ProblemField] = []
