"""Ends of links for tests: identities, a connected pair, and a raw peer that breaks rules."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from services.links import (
    Channel,
    LinkIdentity,
    LinkLimits,
    LinkSecurity,
    LinkTimeouts,
    Listener,
    dial,
    wire,
)
from services.links.identity import SHM_FOLDER, Plane
from shared.messages import (
    PROTOCOL_VERSION,
    CompletionsFrom,
    Envelope,
    FrameSpec,
    Payload,
    encode_envelope,
)

LINK = "batches"
LIMITS = LinkLimits(max_messages=8, max_bytes=2**20)
QUICK = LinkTimeouts(hello_s=10.0, ping_s=0.05, silence_s=20.0, linger_s=1.0)
_runs = (f"linktest{os.getpid()}x{number}" for number in itertools.count())


def new_run_id() -> str:
    return next(_runs)


def listener_identity(run_id: str, incarnation: str = "listener1") -> LinkIdentity:
    return LinkIdentity(run_id, f"batcher-0-{incarnation}", "batcher", 0, incarnation)


def dialer_identity(run_id: str, rank: int = 0, incarnation: str = "dialer1") -> LinkIdentity:
    worker_id = f"target_forward-{rank}-{incarnation}"
    return LinkIdentity(run_id, worker_id, "target_forward", rank, incarnation)


def segments_of(run_id: str) -> list[Path]:
    return sorted(SHM_FOLDER.glob(f"dflash-mesh-{run_id}-*"))


async def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until `condition` holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is observed has no event
            await asyncio.sleep(0.001)


@dataclass
class Pair:
    run_id: str
    listener: Listener
    dialed: Channel
    accepted: Channel

    async def settle(self) -> None:
        """Two round trips: all that either end had to say before has been heard."""
        for _ in range(2):
            await self.accepted.send(CompletionsFrom(-1))
            with await self.dialed.receive() as received:
                assert received.payload == CompletionsFrom(-1)
            await self.accepted.flush()


@asynccontextmanager
async def listening(
    run_id: str,
    *,
    limits: LinkLimits = LIMITS,
    plane: Plane = "auto",
    security: LinkSecurity | None = None,
    timeouts: LinkTimeouts = QUICK,
) -> AsyncIterator[Listener]:
    listener = await Listener.bind(
        LINK,
        listener_identity(run_id),
        host="127.0.0.1",
        limits=limits,
        security=security,
        plane=plane,
        timeouts=timeouts,
    )
    async with listener:
        yield listener


async def dial_to(
    listener: Listener,
    run_id: str,
    *,
    rank: int = 0,
    incarnation: str = "dialer1",
    limits: LinkLimits = LIMITS,
    plane: Plane = "auto",
    security: LinkSecurity | None = None,
    timeouts: LinkTimeouts = QUICK,
) -> Channel:
    return await dial(
        LINK,
        listener.endpoint,
        dialer_identity(run_id, rank, incarnation),
        limits=limits,
        security=security,
        plane=plane,
        timeouts=timeouts,
    )


@asynccontextmanager
async def pair(
    *,
    limits: LinkLimits = LIMITS,
    plane: Plane = "auto",
    security: LinkSecurity | None = None,
    timeouts: LinkTimeouts = QUICK,
) -> AsyncIterator[Pair]:
    run_id = new_run_id()
    common: dict[str, Any] = {
        "limits": limits,
        "plane": plane,
        "security": security,
        "timeouts": timeouts,
    }
    async with (
        listening(run_id, **common) as listener,
        await dial_to(listener, run_id, **common) as dialed,
    ):
        yield Pair(run_id, listener, dialed, await listener.accept())


class RawPeer:
    """A DEALER socket that speaks the wire by hand, so that a test can break its rules."""

    def __init__(self, endpoint: str, run_id: str, rank: int = 7) -> None:
        self.identity = dialer_identity(run_id, rank, "rawpeer1")
        self._number = itertools.count()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 1000)
        self._socket.connect(endpoint)

    async def send(self, parts: Sequence[bytes]) -> None:
        await self._socket.send_multipart(list(parts))

    async def hello(self, **changes: Any) -> tuple[bytes, bytes]:
        """Send a hello with `changes` to its fields; kind and body of the answer."""
        end = wire.End.of(self.identity, "another-host", LIMITS)
        fields = {"protocol": PROTOCOL_VERSION, "link": LINK, "plane": "zmq", "end": end}
        await self.send(wire.pack(wire.HELLO, wire.Hello(**(fields | changes))))
        return await self.answer()

    async def data(
        self, payload: Payload, tensors: Sequence[tuple[FrameSpec, bytes]] = (), **changes: Any
    ) -> None:
        """Send a data message with the next number and `changes` to its envelope."""
        fields = {
            "run_id": self.identity.run_id,
            "sender": self.identity.worker_id,
            "number": next(self._number),
            "payload": payload,
            "frames": [spec for spec, _ in tensors],
        }
        envelope = encode_envelope(Envelope(**(fields | changes)))
        await self.send([wire.DATA, envelope, *(data for _, data in tensors)])

    async def answer(self) -> tuple[bytes, bytes]:
        """The next message from the listener that is not a ping."""
        async with asyncio.timeout(10):
            while True:
                kind, *body = await self._socket.recv_multipart()
                if kind != wire.PING:
                    return kind, b"".join(body)

    async def __aenter__(self) -> RawPeer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._socket.close()
        await asyncio.to_thread(self._context.term)
