"""Throughput of links, beside what the parts could do at best.

    python -m tests.benchmarks.bench_links [--megabytes 8] [--messages 60] [--same-process]

Sender and receiver are two processes on this machine, as two workers are. For each plane: GB/s of
frame bytes, and the ceiling of the same kind: a bare pyzmq PUSH/PULL pair without checksums, one
memcpy, one crc32. `--same-process` puts both ends on one event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from services.links import Frame, LinkLimits, LinkSecurity, Listener, dial, make_link_keys
from services.links.identity import Plane
from shared.messages import CompletionsFrom
from tests.helpers.link_ends import LINK, dialer_identity, listener_identity, new_run_id

WARM_UP = 4


def _security(keys: Any) -> LinkSecurity | None:
    return LinkSecurity.from_keys(keys) if keys is not None else None


async def _send(
    endpoint: str, run_id: str, num_bytes: int, num_messages: int, plane: Plane, keys: Any
) -> None:
    """Send the same frame over and over; the receiver only reads it."""
    data = np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)
    frames = [Frame("states", "uint8", (num_bytes,), data)]
    channel = await dial(
        LINK,
        endpoint,
        dialer_identity(run_id),
        limits=LinkLimits(16, 2**29),
        security=_security(keys),
        plane=plane,
    )
    async with channel:
        for number in range(WARM_UP + num_messages):
            await channel.send(CompletionsFrom(number), frames)
        await channel.flush()


def _send_process(*arguments: Any) -> None:
    asyncio.run(_send(*arguments))


async def _measure(
    num_bytes: int, num_messages: int, plane: Plane, keys: Any, same_process: bool
) -> float:
    """GB/s from the first message after the warm-up to the release of the last."""
    run_id = new_run_id()
    listener = await Listener.bind(
        LINK,
        listener_identity(run_id),
        host="127.0.0.1",
        limits=LinkLimits(16, 2**29),
        security=_security(keys),
        plane=plane,
    )
    arguments = (listener.endpoint, run_id, num_bytes, num_messages, plane, keys)
    async with listener:
        sending: Any
        if same_process:
            sending = asyncio.create_task(_send(*arguments))
        else:
            sending = multiprocessing.get_context("spawn").Process(
                target=_send_process, args=arguments
            )
            sending.start()
        for _ in range(WARM_UP):
            (await listener.receive()).release()
        started = time.perf_counter()
        for _ in range(num_messages):
            (await listener.receive()).release()
        elapsed = time.perf_counter() - started
        if same_process:
            await sending
        else:
            await asyncio.to_thread(sending.join)
    return num_bytes * num_messages / elapsed / 1e9


def _push(endpoint: str, num_bytes: int, num_messages: int) -> None:
    data = bytes(num_bytes)
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.set(zmq.SNDHWM, 16)
        socket.connect(endpoint)
        for _ in range(WARM_UP + num_messages):
            socket.send(data, copy=False)


def _bare_zmq(num_bytes: int, num_messages: int) -> float:
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.set(zmq.RCVHWM, 16)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        process = multiprocessing.get_context("spawn").Process(
            target=_push, args=(f"tcp://127.0.0.1:{port}", num_bytes, num_messages)
        )
        process.start()
        for _ in range(WARM_UP):
            socket.recv(copy=False)
        started = time.perf_counter()
        for _ in range(num_messages):
            socket.recv(copy=False)
        elapsed = time.perf_counter() - started
        process.join()
    return num_bytes * num_messages / elapsed / 1e9


def _rate(function: Callable[[], object], num_bytes: int, repeats: int = 20) -> float:
    function()
    started = time.perf_counter()
    for _ in range(repeats):
        function()
    return num_bytes * repeats / (time.perf_counter() - started) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--messages", type=int, default=60)
    parser.add_argument("--same-process", action="store_true")
    options = parser.parse_args()
    num_bytes = round(options.megabytes * 2**20)

    source = np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)
    target = np.empty_like(source)
    rows: list[tuple[str, float, str]] = []
    memcpy = _rate(lambda: np.copyto(target, source), num_bytes)
    crc = _rate(lambda: zlib.crc32(source), num_bytes)
    bare = _bare_zmq(num_bytes, options.messages)
    cases: list[tuple[str, Plane, Any, str]] = [
        ("link, shm", "shm", None, f"memcpy {memcpy:.2f}"),
        ("link, zmq", "zmq", None, f"bare pyzmq {bare:.2f}, crc32 {crc:.2f}"),
        ("link, zmq, CURVE", "zmq", make_link_keys(), f"bare pyzmq {bare:.2f}"),
        ("link, shm, CURVE headers", "shm", make_link_keys(), f"memcpy {memcpy:.2f}"),
    ]
    for name, plane, keys, ceiling in cases:
        rate = asyncio.run(_measure(num_bytes, options.messages, plane, keys, options.same_process))
        rows.append((name, rate, ceiling))
    print(f"{options.messages} messages of {num_bytes / 1e6:.1f} MB")
    print(f"{'':28}{'GB/s':>8}   ceiling (GB/s)")
    for name, rate, ceiling in rows:
        print(f"{name:28}{rate:8.2f}   {ceiling}")


if __name__ == "__main__":
    main()
