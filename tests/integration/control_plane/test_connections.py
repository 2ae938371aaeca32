"""Idle, slow and too many connections, with a real server on a real socket."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.http import body
from control_plane.http.connections import guarded_protocol, quiet_when_exhausted
from control_plane.server import _Server, listen

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Says 'slow' in two parts, a while apart."""
    headers = [(b"content-length", b"4")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"sl", "more_body": True})
    await asyncio.sleep(0.5)
    await send({"type": "http.response.body", "body": b"ow"})


@asynccontextmanager
async def served(
    application: ASGIApp, *, head_s: float, max_waiting: int = 99
) -> AsyncIterator[int]:
    protocol = guarded_protocol(head_s=head_s, max_waiting=max_waiting)
    config = uvicorn.Config(application, http=protocol, lifespan="off", log_config=None)
    server = _Server(config)
    sock = listen("127.0.0.1", 0)
    with sock:
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


async def reply(port: int, sent: bytes) -> bytes:
    """Everything that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x"])
async def test_who_sends_no_head_is_closed(sent: bytes) -> None:
    async with served(app, head_s=0.1) as port:
        assert await reply(port, sent) == b""


async def test_an_answer_under_way_is_not_cut_and_a_half_second_head_is() -> None:
    async with served(app, head_s=0.1) as port:
        answer = await reply(port, HEAD + HEAD[:20])
    assert answer.endswith(b"slow")


async def test_the_oldest_silent_connection_makes_way() -> None:
    async with served(app, head_s=60, max_waiting=2) as port:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        async with asyncio.timeout(5):
            assert await opened[0][0].read() == b""
        opened[1][1].write(HEAD)
        assert (await opened[1][0].readuntil(b"slow")).startswith(b"HTTP/1.1 200")
        for _, writer in opened:
            writer.close()


async def test_a_body_that_never_ends_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_S", 0.1)
    post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
    async with served(body.BodyMiddleware(app), head_s=60) as port:
        answer = await reply(port, post)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body-too-slow" in answer


def test_accept_errors_are_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    handle = quiet_when_exhausted(lambda: now_s[0])
    loop = asyncio.new_event_loop()
    try:
        with caplog.at_level(logging.ERROR):
            for now_s[0] in (0.0, 1.0, 59.0, 61.0):
                handle(loop, {"message": "", "exception": OSError(errno.EMFILE, "too many")})
            assert len(caplog.records) == 2
            handle(loop, {"message": "something else", "exception": ValueError("x")})
        assert len(caplog.records) == 3
    finally:
        loop.close()
