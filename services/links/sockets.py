"""Sockets of links: a context each, explicit limits, sends that never wait, orderly teardown.

Credit bounds what is under way, so the high-water mark is out of reach of a correct peer; a
socket that reaches it has a peer that no longer reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import zmq
import zmq.asyncio

from services.links.frames import OFF_LOOP_BYTES
from services.links.identity import LinkTimeouts
from services.links.wire import Part

HIGH_WATER_MESSAGES = 100_000
_ZMTP_HEARTBEAT_MS = 2000
_UNREACHABLE = (zmq.EAGAIN, zmq.EHOSTUNREACH, zmq.ENOTSOCK, zmq.ETERM)


def open_socket(
    context: zmq.asyncio.Context, kind: int, timeouts: LinkTimeouts
) -> zmq.asyncio.Socket:
    """A socket of `kind` with every limit set; neither bound nor connected."""
    socket = context.socket(kind)
    socket.set(zmq.LINGER, round(timeouts.linger_s * 1000))
    socket.set(zmq.SNDHWM, HIGH_WATER_MESSAGES)
    socket.set(zmq.RCVHWM, HIGH_WATER_MESSAGES)
    socket.set(zmq.HANDSHAKE_IVL, round(timeouts.hello_s * 1000))
    # In the I/O thread, so that a busy worker is not taken for a dead host.
    socket.set(zmq.HEARTBEAT_IVL, _ZMTP_HEARTBEAT_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, round(timeouts.silence_s * 1000))
    return socket


def post(socket: zmq.asyncio.Socket, parts: Sequence[Part]) -> bool:
    """Hand a message to `socket` without waiting; False when nobody can take it.

    Parts below 1 MB are copied, so that their owners may reuse them at once.
    """
    frames = [zmq.Frame(part, copy=memoryview(part).nbytes < OFF_LOOP_BYTES) for part in parts]
    try:
        sent = socket.send_multipart(frames, flags=zmq.DONTWAIT, copy=False)
        cast("asyncio.Future[Any]", sent).result()  # decided already: it does not wait
    except zmq.ZMQError as error:
        if error.errno in _UNREACHABLE:
            return False
        raise
    return True


async def drain(socket: zmq.asyncio.Socket) -> None:
    """Let the socket's reader take every message that has arrived."""
    while await socket.poll(0):  # noqa: ASYNC110 - a yield to the reader, not a wait
        await asyncio.sleep(0)


async def end_context(context: zmq.asyncio.Context) -> None:
    """Wait, at most the linger time, for closed sockets to send what they hold; then end it.

    Runs to its end even when cancelled: a context left behind would hold its threads.
    """
    ended = asyncio.get_running_loop().run_in_executor(None, context.term)
    cancelled = False
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def run_until(
    stop: asyncio.Event, loops: Sequence[Callable[[], Coroutine[Any, Any, None]]]
) -> None:
    """Run endless loops side by side until `stop` is set; a loop that fails ends them all."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop()) for loop in loops]
        await stop.wait()
        for task in tasks:
            task.cancel()
