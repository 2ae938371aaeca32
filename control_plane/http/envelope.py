"""Outermost layer: a request id for every call, and a problem document for every failure.

The caller's X-Request-ID is echoed when it is a short plain word, and replaced otherwise, since
it goes into logs. An error that nothing else has answered is logged with its traceback under that
id, and the caller learns the id only.
"""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.http.problems import instance_of, mesh_error_response, problem_response
from shared.errors import MeshError

log = logging.getLogger(__name__)

_PLAIN = re.compile(r"^[A-Za-z0-9._:-]{1,128}$")
_SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"}


class EnvelopeMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _PLAIN.match(given) else secrets.token_hex(8)
        started_at = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except MeshError as error:
            if status:
                raise
            await mesh_error_response(error, instance_of(scope))(scope, receive, send_with_id)
        except Exception:
            log.exception("%s %s failed, request %s", scope["method"], scope["path"], request_id)
            if status:
                raise  # the answer has begun: only a broken connection tells the caller now
            response = problem_response(
                500,
                f"an error inside the control plane; its log has it under request {request_id}",
                instance=instance_of(scope),
            )
            await response(scope, receive, send_with_id)
        finally:
            took_ms = (time.perf_counter() - started_at) * 1e3
            log.debug(
                "%s %s -> %d in %.1f ms, request %s",
                scope["method"],
                scope["path"],
                status,
                took_ms,
                request_id,
            )
        return None
