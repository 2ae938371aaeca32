"""What travels on a link's sockets: multipart messages whose first part is their kind.

    HELLO   dialer -> listener   Hello      who dials, what it grants, where it runs
    WELCOME listener -> dialer   Welcome    who answers, what it grants, the plane chosen
    REFUSE  listener -> dialer   Reason     why there will be no channel
    DATA    both ways            Envelope, then the frames unless they lie in shared memory
    CREDIT  both ways            number of a message that the receiver has released
    PING    both ways            nothing: the sender is alive
    BYE     both ways            Reason     the channel is over

Decoding raises ProtocolError and nothing else, whatever a stranger sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
import zmq

from services.links.identity import LinkIdentity, LinkLimits, Plane
from shared.messages import PROTOCOL_VERSION, Envelope, decode_envelope

HELLO, WELCOME, REFUSE, DATA, CREDIT, PING, BYE = b"H", b"W", b"R", b"D", b"C", b"P", b"B"

# What msgspec raises for bytes of strangers: malformed, not text, nested without end.
_UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)

S = TypeVar("S", bound=msgspec.Struct)
Part = Any  # bytes, a buffer, or a zmq.Frame


class ProtocolError(Exception):
    """A message that no correct peer sends; ends the channel it came on."""


class _Version(msgspec.Struct):
    protocol: int


class End(msgspec.Struct, frozen=True):
    """One end of a channel, as it introduces itself."""

    run_id: str
    worker_id: str
    role: str
    rank: int
    incarnation: str
    host: str
    max_messages: int
    max_bytes: int

    @classmethod
    def of(cls, identity: LinkIdentity, host: str, limits: LinkLimits) -> End:
        return cls(
            run_id=identity.run_id,
            worker_id=identity.worker_id,
            role=identity.role,
            rank=identity.rank,
            incarnation=identity.incarnation,
            host=host,
            max_messages=limits.max_messages,
            max_bytes=limits.max_bytes,
        )

    def identity(self) -> LinkIdentity:
        """ProtocolError when a part of it is not fit to be one."""
        try:
            return LinkIdentity(self.run_id, self.worker_id, self.role, self.rank, self.incarnation)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def limits(self) -> LinkLimits:
        """ProtocolError when the credit is not positive."""
        try:
            return LinkLimits(self.max_messages, self.max_bytes)
        except ValueError as error:
            raise ProtocolError(str(error)) from None


class Hello(msgspec.Struct, frozen=True):
    protocol: int
    link: str
    plane: Plane
    end: End


class Welcome(msgspec.Struct, frozen=True):
    plane: Literal["shm", "zmq"]
    end: End


class Reason(msgspec.Struct, frozen=True):
    text: str


def pack(kind: bytes, body: msgspec.Struct) -> list[Part]:
    """A control message of `kind`."""
    return [kind, msgspec.msgpack.encode(body)]


def pack_credit(number: int) -> list[Part]:
    return [CREDIT, number.to_bytes(8, "little")]


def unpack_credit(parts: Sequence[zmq.Frame]) -> int:
    body = _only_body(parts)
    if len(body) != 8:
        raise ProtocolError(f"a credit of {len(body)} bytes instead of 8")
    return int.from_bytes(body, "little")


def unpack(parts: Sequence[zmq.Frame], body: type[S]) -> S:
    """The body of a control message."""
    return _decode(_only_body(parts), body)


def unpack_hello(parts: Sequence[zmq.Frame]) -> Hello:
    """A hello of this protocol version; another version is named before anything else."""
    body = _only_body(parts)
    version = _decode(body, _Version).protocol
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"link protocol {version} meets link protocol {PROTOCOL_VERSION}: run the same "
            "version of dflash-mesh on both ends"
        )
    return _decode(body, Hello)


def unpack_envelope(parts: Sequence[zmq.Frame]) -> Envelope:
    """The envelope of a DATA message, its second part."""
    if len(parts) < 2:
        raise ProtocolError("a data message without an envelope")
    try:
        return decode_envelope(parts[1].bytes)
    except _UNREADABLE as error:
        raise ProtocolError(f"an envelope that cannot be read: {error}") from None


def _only_body(parts: Sequence[zmq.Frame]) -> bytes:
    if len(parts) != 2:
        raise ProtocolError(f"a control message of {len(parts)} parts instead of 2")
    return parts[1].bytes


def _decode(data: bytes, body: type[S]) -> S:
    try:
        return msgspec.msgpack.decode(data, type=body)
    except _UNREADABLE as error:
        raise ProtocolError(f"a message that cannot be read: {error}") from None
