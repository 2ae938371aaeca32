"""Request bodies: at most 1 MiB, and JSON that every later layer can hold.

The whole body is read here, whatever way it is framed, so that a chunked one is bounded too. JSON
that Python would take but SQLite, an answer or a log line would not (NaN, integers past 64 bits,
lone surrogates, NUL characters, deep nesting) is refused here with a place and a reason.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.http.problems import instance_of, problem_response
from shared.errors import TooLargeError, UserError

MAX_BODY_BYTES = 2**20
MAX_DEPTH = 32
BODY_S = 30.0
_LIMIT = 2**63
_MANY_DIGITS = re.compile(rb"\d{19}")
BODY_KEY = "dflash_mesh.body"


class BodyMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        try:
            async with asyncio.timeout(BODY_S):
                body = await _read(headers, receive)
        except TimeoutError:
            response = problem_response(
                408,
                f"the body did not come within {BODY_S:.0f} s",
                instance=instance_of(scope),
                headers={"Connection": "close"},
            )
            return await response(scope, receive, send)
        if body is None:
            return None
        if body:
            if not _is_json(headers.get("content-type", "")):
                response = problem_response(
                    415,
                    "send the body as JSON, with 'Content-Type: application/json'",
                    instance=instance_of(scope),
                )
                return await response(scope, receive, send)
            check_json(body)
        scope[BODY_KEY] = body
        return await self.app(scope, _replay(body, receive), send)


def check_json(body: bytes) -> None:
    """Raises UserError, with what is wrong and where, unless `body` is acceptable JSON."""
    try:
        tree = orjson.loads(body)
        if _MANY_DIGITS.search(body):
            json.loads(body, parse_int=_bounded)
    except orjson.JSONDecodeError as error:
        raise UserError(f"the body is not acceptable JSON: {error}") from None
    _check_tree(tree)


def _bounded(digits: str) -> int:
    if len(digits) > 20 or not -_LIMIT <= int(digits) < _LIMIT:
        raise UserError(f"the body holds an integer beyond 64 bits: {digits[:24]}...")
    return int(digits)


def _check_tree(tree: Any) -> None:
    pending: list[tuple[Any, int]] = [(tree, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise UserError(f"the body is nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, str):
            if "\0" in node:
                raise UserError("the body holds a NUL character (\\u0000)")
        elif isinstance(node, list):
            pending.extend((item, depth + 1) for item in node)
        elif isinstance(node, dict):
            if any("\0" in key for key in node):
                raise UserError("the body holds a NUL character (\\u0000)")
            pending.extend((item, depth + 1) for item in node.values())


async def _read(headers: Headers, receive: Receive) -> bytes | None:
    """The body; None when the caller went away. TooLargeError as soon as it is too long."""
    declared = headers.get("content-length", "")
    if declared.isdigit() and len(declared) < 20 and int(declared) > MAX_BODY_BYTES:
        raise TooLargeError(_too_large(int(declared)))
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise TooLargeError(_too_large(size))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(size: int) -> str:
    return f"the body has {size} bytes or more; at most {MAX_BODY_BYTES} are accepted"


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )
