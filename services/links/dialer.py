"""The dialing end of a link: one socket and one connection for each channel.

    dial -> HELLO ... WELCOME -> Channel        REFUSE, rejected keys, no answer -> LinkError

Loops run behind a channel until it ends: the reader (messages to the channel), the watcher (the
socket's monitor: a lost connection ends the channel, because whoever answers after it may be
another incarnation), the heartbeat, and the parting. They, the socket and its context go with the
channel, whichever end ends it.
"""

from __future__ import annotations

import asyncio

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from services.links import wire
from services.links.channel import Channel, keep_alive
from services.links.identity import (
    LinkIdentity,
    LinkLimits,
    LinkTimeouts,
    Plane,
    host_identity,
    require_plane,
)
from services.links.security import LinkSecurity
from services.links.sockets import drain, end_context, open_socket, post, run_until
from services.links.wire import ProtocolError
from shared.errors import LinkError
from shared.messages import PROTOCOL_VERSION

_WATCHED = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_SYMPTOMS = {
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): "it is connected but says nothing",
    int(
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    ): "it speaks another protocol, or only one end has keys",
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "it hangs up: are the link keys those of its run?",
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "it rejects the link keys of this worker",
}


async def dial(
    name: str,
    endpoint: str,
    identity: LinkIdentity,
    *,
    limits: LinkLimits,
    security: LinkSecurity | None,
    plane: Plane = "auto",
    timeouts: LinkTimeouts | None = None,
) -> Channel:
    """A channel of link `name` to the listener at `endpoint` ('tcp://host:port').

    limits: the credit this end grants the peer. Close the channel in the end. Raises LinkError
    when the listener refuses, rejects the keys, or does not answer within `hello_s`;
    EnvironmentFault when plane 'shm' is asked for and this host has no /dev/shm.
    """
    require_plane(plane)
    connection = _Connection(name, endpoint, identity, limits, timeouts or LinkTimeouts())
    try:
        return await connection.open(security, plane)
    except BaseException:
        await connection.close()
        raise


class _Connection:
    """Socket, context and loops behind one dialed channel."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        identity: LinkIdentity,
        limits: LinkLimits,
        timeouts: LinkTimeouts,
    ) -> None:
        self._name = name
        self._endpoint = endpoint
        self._identity = identity
        self._limits = limits
        self._timeouts = timeouts
        self._channel: Channel | None = None
        self._welcomed: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        self._symptom = "nothing listens there"
        self._connected = False
        self._ended = asyncio.Event()
        self._stop = asyncio.Event()
        self._context = zmq.asyncio.Context()
        self._socket = open_socket(self._context, zmq.DEALER, timeouts)
        self._monitor = self._socket.get_monitor_socket(_WATCHED)
        self._task = asyncio.create_task(self._run(), name=f"link {name} to {endpoint}")

    async def open(self, security: LinkSecurity | None, plane: Plane) -> Channel:
        if security is not None:
            security.secure_dialer(self._socket)
        self._socket.set(zmq.IPV6, int("[" in self._endpoint))
        try:
            self._socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            raise LinkError(f"{self._endpoint!r} is no address to dial: {error}") from None
        end = wire.End.of(self._identity, host_identity(), self._limits)
        hello = wire.Hello(PROTOCOL_VERSION, self._name, plane, end)
        post(self._socket, wire.pack(wire.HELLO, hello))
        try:
            async with asyncio.timeout(self._timeouts.hello_s):
                return await self._welcomed
        except TimeoutError:
            raise LinkError(
                f"link {self._name!r}: no answer from {self._endpoint} within "
                f"{self._timeouts.hello_s:g} s: {self._symptom}"
            ) from None

    async def close(self) -> None:
        """Give up at once; returns when loops, socket and context are gone."""
        self._stop.set()
        await self._closed()

    async def _closed(self) -> None:
        """Wait until loops, socket and context are gone; raises a loop's failure."""
        await asyncio.shield(self._task)

    async def _run(self) -> None:
        try:
            await run_until(self._stop, [self._read, self._watch, self._beat, self._part])
        finally:
            self._fail("this end has stopped")
            if self._channel is not None:
                self._channel.shut(f"link {self._name!r}: this end has stopped", tell_peer=True)
            self._monitor.close(linger=0)
            self._socket.disable_monitor()
            # Frames queued for a peer that is gone would only hold up the end of the context.
            self._socket.close(linger=None if self._connected else 0)
            await end_context(self._context)

    async def _read(self) -> None:
        while True:
            parts = await self._socket.recv_multipart(copy=False)
            if self._channel is not None:
                self._channel.handle(parts)
            else:
                self._handle_answer(parts)

    def _handle_answer(self, parts: list[zmq.Frame]) -> None:
        kind = parts[0].bytes
        try:
            if kind == wire.WELCOME:
                self._open_channel(wire.unpack(parts, wire.Welcome))
            elif kind in (wire.REFUSE, wire.BYE):
                self._fail(f"refused by {self._endpoint}: {wire.unpack(parts, wire.Reason).text}")
        except ProtocolError as error:
            self._fail(f"{self._endpoint} does not speak the link protocol: {error}")

    def _open_channel(self, welcome: wire.Welcome) -> None:
        if self._welcomed.done():
            return
        self._channel = Channel(
            self._name,
            self._identity,
            welcome.end.identity(),
            own_limits=self._limits,
            peer_limits=welcome.end.limits(),
            plane=welcome.plane,
            post=lambda parts: post(self._socket, parts),
            on_end=lambda channel: self._ended.set(),
            close_transport=self._closed,
        )
        self._welcomed.set_result(self._channel)

    def _fail(self, problem: str) -> None:
        if not self._welcomed.done():
            self._welcomed.set_exception(LinkError(f"link {self._name!r}: {problem}"))
            self._welcomed.exception()  # seen, even if the dial was given up meanwhile

    async def _watch(self) -> None:
        while True:
            event = parse_monitor_message(await self._monitor.recv_multipart())["event"]
            self._symptom = _SYMPTOMS.get(event, self._symptom)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected = True
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._fail(f"{self._endpoint} rejects the link keys of this worker")
            elif event == zmq.EVENT_DISCONNECTED and self._connected:
                await drain(self._socket)
                self._connected = False
                self._fail(f"{self._endpoint} hung up during the hello")
                if self._channel is not None:
                    peer = self._channel.peer
                    self._channel.lost(f"link {self._name!r} lost its connection to {peer}")

    async def _beat(self) -> None:
        await keep_alive(lambda: [self._channel] if self._channel else [], self._timeouts)

    async def _part(self) -> None:
        """Once the channel has ended, stay until the peer has heard of it."""
        await self._ended.wait()
        assert self._channel is not None
        await self._channel.farewell(self._timeouts.linger_s)
        self._stop.set()
