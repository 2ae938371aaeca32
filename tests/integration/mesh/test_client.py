"""The control-plane client against real sockets: what is answered, and what is not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.control_plane import ControlPlaneClient
from shared.api.workers import Heartbeat
from shared.errors import NotFoundError, UnreachableError, UpstreamError, UpstreamTimeout
from shared.states import WorkerState

ANSWER = b'{"desired":"run","peers":[],"acked_events":0,"overrides":[]}'
BEAT = Heartbeat(incarnation="aaaaaaaa", seq=0, state=WorkerState.RUNNING)


@asynccontextmanager
async def server(*answers: bytes | None, close_after_each: bool = False) -> AsyncIterator[str]:
    """Answers requests with these bodies in order; None: never answers."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await read_request(reader):
                body = left.pop(0)
                if body is None:
                    await reader.read()
                    return
                status = b"404 Not Found" if body.startswith(b"<") else b"200 OK"
                length = str(len(body)).encode()
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: " + length)
                writer.write(b"\r\n\r\n" + body)
                assert head
                await writer.drain()
                if close_after_each:
                    return
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.split(b":")[1]))
    return head


async def test_a_connection_closed_while_idle_is_opened_again() -> None:
    answering = server(ANSWER, ANSWER, close_after_each=True)
    async with answering as url, ControlPlaneClient(url) as client:
        for _ in range(2):
            assert (await client.heartbeat("w", BEAT)).acked_events == 0


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with ControlPlaneClient(url) as client:
            with pytest.raises(UnreachableError, match="cannot be reached"):
                await client.heartbeat("w", BEAT)


async def test_no_answer_in_time() -> None:
    async with server(None) as url, ControlPlaneClient(url, timeout_s=0.2) as client:
        with pytest.raises(UpstreamTimeout, match="did not answer PUT"):
            await client.heartbeat("w", BEAT)


@pytest.mark.parametrize("body", [b"{}", b"not json"])
async def test_an_answer_that_is_none_of_ours(body: bytes) -> None:
    async with server(body) as url, ControlPlaneClient(url) as client:
        with pytest.raises(UpstreamError, match="is not a HeartbeatAnswer"):
            await client.heartbeat("w", BEAT)


async def test_an_error_page_of_something_else() -> None:
    async with server(b"<html>no such page</html>") as url, ControlPlaneClient(url) as client:
        with pytest.raises(Exception, match="404: <html>no such page") as raised:
            await client.get_run("r")
        assert not isinstance(raised.value, NotFoundError)
