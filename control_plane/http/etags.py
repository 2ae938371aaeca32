"""Entity tags: unchanged answers cost the caller no body."""

from __future__ import annotations

import hashlib

from starlette.responses import Response


def tagged_json(body: bytes, if_none_match: str | None) -> Response:
    """`body` as JSON with a strong ETag, or 304 when the caller has just this."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if if_none_match is not None and _matches(tag, if_none_match):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def _matches(tag: str, if_none_match: str) -> bool:
    candidates = {item.strip().removeprefix("W/") for item in if_none_match.split(",")}
    return "*" in candidates or tag in candidates
