"""A channel: two workers, both directions, from the hello to the first end that leaves.

The socket's reader feeds `handle`; roles call `send`, `receive` and `close`. Senders wait for the
peer's releases, receivers for the peer's messages, and both are woken by the end of the channel.
A channel ends once: by `close`, the peer's BYE, a lost connection, silence, a message that breaks
the protocol, or a checksum that does not match. It never comes back; dial again.

A BYE is answered with a BYE, and only then does the end that said it first take its connection
down: a connection closed earlier could discard what the peer has not read yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal

import zmq

from services.links import wire
from services.links.frames import Frame
from services.links.identity import LinkIdentity, LinkLimits, LinkTimeouts
from services.links.inbox import Arrival, Inbox
from services.links.outbox import Outbox
from services.links.stats import Direction, LinkStats
from services.links.wire import Part, ProtocolError
from shared.errors import IntegrityError
from shared.messages import Payload

logger = logging.getLogger(__name__)


class Received:
    """A message and its frames; release it once its bytes are copied or used.

    The frames are invalid after `release`, which gives the sender its credit (and the place in
    shared memory) back. Also a context manager that releases at its end.
    """

    def __init__(self, channel: Channel, inbox: Inbox, arrival: Arrival) -> None:
        self.channel = channel
        self.payload: Payload = arrival.envelope.payload
        self.frames: dict[str, Frame] = arrival.frames()
        self.num_bytes = arrival.num_bytes
        self._inbox = inbox
        self._arrival: Arrival | None = arrival

    def release(self) -> None:
        """Give the credit back; a second call does nothing."""
        if self._arrival is not None:
            arrival, self._arrival = self._arrival, None
            self._inbox.release(arrival)

    def __enter__(self) -> Received:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class Channel:
    """Made by `dial` and `Listener`, not by hand.

    post: hands parts to the peer without waiting; False when it cannot be reached.
    on_arrival: called for every data message. on_end: called once when the channel ends.
    close_transport: waits until what was sent has left and the sockets are gone.
    """

    def __init__(
        self,
        name: str,
        identity: LinkIdentity,
        peer: LinkIdentity,
        *,
        own_limits: LinkLimits,
        peer_limits: LinkLimits,
        plane: Literal["shm", "zmq"],
        post: Callable[[list[Part]], bool],
        on_arrival: Callable[[], None] | None = None,
        on_end: Callable[[Channel], None] | None = None,
        close_transport: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.peer = peer
        self.plane = plane
        self.end_reason: str | None = None
        self._post = post
        self._on_arrival = on_arrival
        self._on_end = on_end
        self._close_transport = close_transport
        self._unreachable = False
        self._parted = asyncio.Event()
        self._heard_s = asyncio.get_running_loop().time()
        where = f"link {name!r} with {peer}"
        self._where = where
        self._outbox = Outbox(where, identity, peer_limits, plane, self._post_data)
        self._inbox = Inbox(where, peer, own_limits, self._post_credit)

    @property
    def peer_worker_id(self) -> str:
        return self.peer.worker_id

    @property
    def peer_incarnation(self) -> str:
        return self.peer.incarnation

    @property
    def peer_role(self) -> str:
        return self.peer.role

    @property
    def peer_rank(self) -> int:
        return self.peer.rank

    @property
    def closed(self) -> bool:
        return self.end_reason is not None

    @property
    def has_arrivals(self) -> bool:
        """Whether `receive` has a message at hand."""
        return len(self._inbox) > 0

    async def send(self, payload: Payload, frames: Sequence[Frame] = ()) -> None:
        """Hand a message to the link; waits while the peer's credit is used up.

        A frame of up to 1 MB may be reused on return; a larger one must stay as it is until
        `flush` returns, since it may still be read. Raises ChannelClosed, and ValueError for a
        frame that is no C-contiguous buffer of its dtype and shape.
        """
        await self._outbox.send(payload, frames)

    async def flush(self) -> None:
        """Wait until the peer has released everything sent; ChannelClosed if it never will."""
        await self._outbox.flush()

    async def receive(self) -> Received:
        """The next message. ChannelClosed once the channel has ended and nothing is left;
        IntegrityError, which ends the channel, when a checksum does not match."""
        try:
            return Received(self, self._inbox, await self._inbox.receive())
        except IntegrityError as error:
            self.shut(str(error), tell_peer=True)
            raise

    def stats(self, direction: Direction = "sent") -> LinkStats:
        return (self._outbox if direction == "sent" else self._inbox).stats()

    async def close(self) -> None:
        """End the channel; returns when the peer has taken what was sent, or after `linger_s`."""
        self.shut(f"{self._where} was closed by this end", tell_peer=True)
        if self._close_transport is not None:
            await self._close_transport()

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Below: for the sockets' owners (dialer, listener) only.

    def handle(self, parts: Sequence[zmq.Frame]) -> None:
        """Take a message from the peer; one that breaks the protocol ends the channel."""
        self._heard_s = asyncio.get_running_loop().time()
        if self.closed:
            if parts[0].bytes == wire.BYE:
                self._parted.set()
            return
        try:
            self._dispatch(parts)
        except ProtocolError as error:
            logger.warning("%s: %s", self._where, error)
            self.shut(f"{self._where} broke the link protocol: {error}", tell_peer=True)

    def beat(self, timeouts: LinkTimeouts, *, judge: bool) -> None:
        """One heartbeat: ping, and end the channel when the peer is gone or silent.

        A connection found lost is given one more beat, so that the reader takes what came before.
        `judge` is false when this process was itself held up and may not have read yet.
        """
        silent_s = asyncio.get_running_loop().time() - self._heard_s
        if self.closed:
            if not self.parted and not self._post([wire.PING]):
                self._parted.set()
        elif self._unreachable:
            self.shut(f"{self._where} lost its connection: the peer is gone")
        elif judge and silent_s > timeouts.silence_s:
            self.shut(f"{self._where} heard nothing for {silent_s:.1f} s", tell_peer=True)
        elif not self._post([wire.PING]):
            self._unreachable = True

    @property
    def parted(self) -> bool:
        """Whether nothing more is to be expected of the peer."""
        return self._parted.is_set()

    async def farewell(self, within_s: float) -> None:
        """After the end: wait until the peer has answered it, at most `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                await self._parted.wait()
        except TimeoutError:
            logger.warning("%s: no answer to the end within %g s", self._where, within_s)
            self._parted.set()

    def lost(self, reason: str) -> None:
        """The connection is gone: end the channel, or stop waiting for its end to be heard."""
        self.shut(reason)
        self._parted.set()

    def shut(self, reason: str, *, tell_peer: bool = False) -> None:
        """End the channel now; the first reason stays."""
        if self.closed:
            return
        self.end_reason = reason
        told = tell_peer and self._post(wire.pack(wire.BYE, wire.Reason(reason)))
        if not told:
            self._parted.set()
        self._outbox.end(reason)
        self._inbox.end(reason)
        logger.debug("%s ended: %s", self._where, reason)
        if self._on_end is not None:
            self._on_end(self)
        if self._on_arrival is not None:
            self._on_arrival()

    def _dispatch(self, parts: Sequence[zmq.Frame]) -> None:
        kind = parts[0].bytes
        if kind == wire.DATA:
            self._inbox.take_in(parts)
            if self._on_arrival is not None:
                self._on_arrival()
        elif kind == wire.CREDIT:
            self._outbox.released(wire.unpack_credit(parts))
        elif kind == wire.BYE:
            reason = wire.unpack(parts, wire.Reason).text
            self.shut(f"the peer says: {reason}", tell_peer=True)
            self._parted.set()
        elif kind != wire.PING:
            raise ProtocolError(f"a message of unknown kind {kind[:8]!r}")

    def _post_data(self, parts: list[Part]) -> None:
        if not self._post(parts):
            self.shut(f"{self._where} lost its connection: the peer is gone")

    def _post_credit(self, number: int) -> None:
        if not self._post(wire.pack_credit(number)):
            self._unreachable = True


async def keep_alive(channels: Callable[[], Iterable[Channel]], timeouts: LinkTimeouts) -> None:
    """Beat every channel every `ping_s` until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + timeouts.ping_s
        await asyncio.sleep(timeouts.ping_s)
        held_up = loop.time() - due > timeouts.ping_s
        for channel in list(channels()):
            channel.beat(timeouts, judge=not held_up)
