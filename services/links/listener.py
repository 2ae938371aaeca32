"""The listening end of a link: one socket, a channel for each worker that dials.

A HELLO from a new connection is checked (protocol, run, link name, plane) and answered with a
WELCOME or a reason. Messages of connections without a channel are counted and dropped, so that
neither a stranger nor a peer that speaks to an earlier incarnation of this listener does harm. A
worker has one channel at a time: a new hello of the same role and rank ends the one before.

`accept` yields new channels; `receive` yields messages of all channels in turn, so that no peer
starves another. Use `receive` of the listener or of its channels, not both.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket as network
from collections import deque
from dataclasses import replace
from typing import Literal

import zmq
import zmq.asyncio

from services.links import wire
from services.links.channel import Channel, Received, keep_alive
from services.links.identity import (
    LinkIdentity,
    LinkLimits,
    LinkTimeouts,
    Plane,
    choose_plane,
    host_identity,
    require_plane,
)
from services.links.security import Doorkeeper, LinkSecurity
from services.links.sockets import end_context, open_socket, post, run_until
from services.links.stats import Direction, LinkStats, Meter, add_up
from services.links.wire import Part, ProtocolError
from shared.errors import ChannelClosed, EnvironmentFault

logger = logging.getLogger(__name__)


class Listener:
    """Made by `bind`; close it in the end, or use it as an async context manager."""

    def __init__(
        self,
        name: str,
        identity: LinkIdentity,
        limits: LinkLimits,
        plane: Plane,
        timeouts: LinkTimeouts,
    ) -> None:
        self.name = name
        self.endpoint = ""
        self.num_strangers = 0  # messages dropped because no channel is behind them
        self._identity = identity
        self._limits = limits
        self._plane = plane
        self._timeouts = timeouts
        self._channels: dict[bytes, Channel] = {}
        self._rotation: deque[Channel] = deque()  # live channels, and ended ones not yet emptied
        self._unaccepted: deque[Channel] = deque()
        self._changed = asyncio.Event()
        self._waiting = Meter()
        self._turn = asyncio.Lock()
        self._closing = asyncio.Event()
        self._stop = asyncio.Event()
        self._context = zmq.asyncio.Context()
        self._socket = open_socket(self._context, zmq.ROUTER, timeouts)
        self._socket.set(
            zmq.ROUTER_MANDATORY, 1
        )  # a send to a lost peer fails instead of vanishing
        self._doorkeeper: Doorkeeper | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def bind(
        cls,
        name: str,
        identity: LinkIdentity,
        *,
        host: str,
        limits: LinkLimits,
        security: LinkSecurity | None,
        plane: Plane = "auto",
        timeouts: LinkTimeouts | None = None,
    ) -> Listener:
        """Listen on a free port of `host`; `endpoint` then says where.

        limits: the credit that each peer gets. Raises EnvironmentFault when `host` is no address
        of this machine, or plane 'shm' is asked for and this host has no /dev/shm.
        """
        require_plane(plane)
        listener = cls(name, identity, limits, plane, timeouts or LinkTimeouts())
        try:
            listener._open(await _address(host), security)
        except BaseException:
            listener._close_sockets()
            await end_context(listener._context)
            raise
        listener._task = asyncio.create_task(listener._run(), name=f"link {name}")
        return listener

    @property
    def channels(self) -> list[Channel]:
        """Channels that are open now."""
        return [channel for channel in self._channels.values() if not channel.closed]

    async def accept(self) -> Channel:
        """The next new channel that is still open; ChannelClosed once the listener is closed."""
        while True:
            while self._unaccepted:
                channel = self._unaccepted.popleft()
                if not channel.closed:
                    return channel
            await self._change()

    async def receive(self) -> Received:
        """The next message of any channel, channels taking turns.

        Raises ChannelClosed once the listener is closed; IntegrityError for a message whose
        checksum does not match, which ends only the channel it came on.
        """
        async with self._turn:
            while True:
                for channel in list(self._rotation):
                    self._rotation.remove(channel)
                    if channel.has_arrivals or not channel.closed:
                        self._rotation.append(channel)
                    if channel.has_arrivals:
                        return await channel.receive()
                with self._waiting:
                    await self._change()

    def stats(self, direction: Direction = "received") -> LinkStats:
        """The sum over the channels that are open; `wait_s` includes that of `receive` here."""
        total = add_up(channel.stats(direction) for channel in self.channels)
        if direction == "sent":
            return total
        return replace(total, wait_s=total.wait_s + self._waiting.wait_s)

    async def close(self) -> None:
        """End every channel; returns when the peers have taken what was sent, or after
        `linger_s`."""
        for channel in self.channels:
            channel.shut(f"link {self.name!r}: the listener was closed", tell_peer=True)
        self._closing.set()
        self._changed.set()
        if self._task is not None:
            await asyncio.shield(self._task)

    async def __aenter__(self) -> Listener:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _open(self, address: str, security: LinkSecurity | None) -> None:
        if security is not None:
            self._doorkeeper = Doorkeeper(self._context, security)
            security.secure_listener(self._socket)
        bracketed = f"[{address}]" if ":" in address else address
        self._socket.set(zmq.IPV6, int(":" in address))
        try:
            self._socket.bind(f"tcp://{bracketed}:0")
        except zmq.ZMQError as error:
            raise EnvironmentFault(
                f"link {self.name!r} cannot listen on {address!r} ({error}): set links.host to an "
                "address of this machine"
            ) from None
        port = self._socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        everywhere = ipaddress.ip_address(address).is_unspecified
        self.endpoint = f"tcp://{network.gethostname() if everywhere else bracketed}:{port}"

    async def _run(self) -> None:
        loops = [self._read, self._beat, self._part]
        if self._doorkeeper is not None:
            loops.append(self._doorkeeper.serve)
        try:
            await run_until(self._stop, loops)
        finally:
            self._closing.set()
            for channel in self.channels:
                channel.shut(f"link {self.name!r}: the listener has stopped", tell_peer=True)
            self._changed.set()
            self._close_sockets()
            await end_context(self._context)

    def _close_sockets(self) -> None:
        self._socket.close()
        if self._doorkeeper is not None:
            self._doorkeeper.close()

    async def _change(self) -> None:
        if self._closing.is_set():
            raise ChannelClosed(f"link {self.name!r}: the listener is closed")
        self._changed.clear()
        await self._changed.wait()

    async def _beat(self) -> None:
        await keep_alive(self._unparted, self._timeouts)

    def _unparted(self) -> list[Channel]:
        """Channels whose peers may still speak; the others are forgotten."""
        for routing_id, channel in list(self._channels.items()):
            if channel.parted:
                del self._channels[routing_id]
        return list(self._channels.values())

    async def _part(self) -> None:
        """Once the listener is closed, stay until its peers have heard of it."""
        await self._closing.wait()
        async with asyncio.TaskGroup() as group:
            for channel in self._channels.values():
                group.create_task(channel.farewell(self._timeouts.linger_s))
        self._stop.set()

    async def _read(self) -> None:
        while True:
            routing, *parts = await self._socket.recv_multipart(copy=False)
            self._handle(routing.bytes, parts)

    def _handle(self, routing_id: bytes, parts: list[zmq.Frame]) -> None:
        channel = self._channels.get(routing_id)
        if channel is not None and parts:
            channel.handle(parts)
        elif parts and parts[0].bytes == wire.HELLO:
            self._answer(routing_id, parts)
        else:
            self.num_strangers += 1
            if parts and parts[0].bytes in (wire.DATA, wire.PING, wire.CREDIT):
                reason = "it speaks on a connection that this listener does not know: dial again"
                self._post(routing_id, wire.pack(wire.BYE, wire.Reason(reason)))

    def _answer(self, routing_id: bytes, parts: list[zmq.Frame]) -> None:
        try:
            hello = wire.unpack_hello(parts)
            peer, limits = hello.end.identity(), hello.end.limits()
            plane = self._check(hello)
        except (ProtocolError, ValueError) as error:
            logger.warning("link %r refuses a hello: %s", self.name, error)
            self.num_strangers += 1
            self._post(routing_id, wire.pack(wire.REFUSE, wire.Reason(str(error))))
            return
        for earlier in self.channels:
            if (earlier.peer_role, earlier.peer_rank) == (peer.role, peer.rank):
                earlier.shut(f"link {self.name!r}: {peer} dialed anew", tell_peer=True)
        channel = Channel(
            self.name,
            self._identity,
            peer,
            own_limits=self._limits,
            peer_limits=limits,
            plane=plane,
            post=lambda parts: self._post(routing_id, parts),
            on_arrival=self._changed.set,
            close_transport=lambda: channel.farewell(self._timeouts.linger_s),
        )
        self._channels[routing_id] = channel
        self._rotation.append(channel)
        self._unaccepted.append(channel)
        end = wire.End.of(self._identity, host_identity(), self._limits)
        self._post(routing_id, wire.pack(wire.WELCOME, wire.Welcome(plane, end)))
        self._changed.set()

    def _check(self, hello: wire.Hello) -> Literal["shm", "zmq"]:
        if self._closing.is_set():
            raise ValueError("the listener is closed")
        if hello.end.run_id != self._identity.run_id:
            raise ValueError(
                f"this is run {self._identity.run_id}, not {hello.end.run_id}: the endpoint is "
                "another run's"
            )
        if hello.link != self.name:
            raise ValueError(f"this is link {self.name!r}, not {hello.link!r}")
        same_host = hello.end.host == host_identity()
        return choose_plane(self._plane, hello.plane, same_host=same_host)

    def _post(self, routing_id: bytes, parts: list[Part]) -> bool:
        return post(self._socket, [routing_id, *parts])


async def _address(host: str) -> str:
    """The numeric address of `host`; sockets are not bound to names."""
    if host == "*":
        return "0.0.0.0"
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, type=network.SOCK_STREAM)
    except OSError as error:
        raise EnvironmentFault(
            f"links.host {host!r} cannot be resolved ({error.strerror}): set it to an address of "
            "this machine"
        ) from None
    return str(found[0][4][0])
