"""`Idempotency-Key` on POST: the first answer again for the same request, 422 for another one.

The first call claims the key in the database before it runs and stores its answer after; a
duplicate that arrives meanwhile waits for that answer. Answers of 5xx are not stored, since a
repetition may cure them. Calls that hand out secrets keep only the fingerprint of the request, are
safe to repeat by themselves, and run again: registration (link keys). Sign-in carries the token in
its body and is left alone altogether.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.http.access import SESSION_PATH
from control_plane.http.body import BODY_KEY
from control_plane.store import Database, idempotency
from shared.errors import FieldError, UserError

HEADER = "idempotency-key"
REPLAYED = "Idempotency-Replayed"
_KEY = re.compile(r"^[\x21-\x7e]{1,255}$")
_KEPT_HEADERS = ("content-type", "location", "etag")
_RUN_AGAIN = frozenset({"/v1/workers"})


class IdempotencyMiddleware:
    """`database` is looked up for each call, since it is opened after the app is made."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._running: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] == SESSION_PATH:
            return await self.app(scope, receive, send)
        key = Headers(scope=scope).get(HEADER)
        if key is None:
            return await self.app(scope, receive, send)
        if not _KEY.match(key):
            raise UserError(
                "Idempotency-Key must be 1 to 255 visible ASCII characters",
                errors=[FieldError("header.Idempotency-Key", "not a usable key")],
            )
        while (running := self._running.get(key)) is not None:
            await running.wait()
        self._running[key] = asyncio.Event()
        try:
            await self._once(key, scope, receive, send)
        finally:
            self._running.pop(key).set()
        return None

    async def _once(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        database: Database = scope["app"].state.mesh.database
        known = await database.write(idempotency.begin, key, _fingerprint(scope), now=time.time())
        if scope["path"] in _RUN_AGAIN:
            if known is None:
                await database.write(
                    idempotency.finish, key, status=HTTPStatus.CREATED, headers={}, body=b""
                )
            return await self.app(scope, receive, send)
        if known is not None and known.status is not None:
            headers = {**known.headers, REPLAYED: "true"}
            return await Response(known.body, known.status, headers)(scope, receive, send)
        recorder = _Recorder(send)
        try:
            await self.app(scope, receive, recorder.send)
        finally:
            # Shielded: a caller who goes away does not make what was done repeatable.
            await asyncio.shield(self._store(database, key, recorder))
        return None

    async def _store(self, database: Database, key: str, recorder: _Recorder) -> None:
        if recorder.status == 0 or recorder.status >= 500:
            await database.write(idempotency.forget, key)
            return
        await database.write(
            idempotency.finish,
            key,
            status=recorder.status,
            headers=recorder.headers,
            body=bytes(recorder.body),
        )


class _Recorder:
    """Passes an answer on and keeps a copy of it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = Headers(raw=message["headers"])
            self.headers = {name: given[name] for name in _KEPT_HEADERS if name in given}
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
        await self._send(message)


def _fingerprint(scope: Scope) -> str:
    digest = hashlib.sha256()
    for part in (
        scope["method"].encode(),
        scope["path"].encode("utf-8", "surrogatepass"),
        scope["query_string"],
        scope.get(BODY_KEY, b""),
    ):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
