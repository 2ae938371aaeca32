"""Decoding: only ProtocolError, whatever arrives."""

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from services.links import wire
from services.links.identity import LinkIdentity, LinkLimits
from services.links.wire import ProtocolError
from shared.messages import PROTOCOL_VERSION

IDENTITY = LinkIdentity("run", "w1", "batcher", 2, "abcd1234")
END = wire.End.of(IDENTITY, "host", LinkLimits(3, 100))


def _frames(parts):
    return [zmq.Frame(part) for part in parts]


def test_a_hello_survives_the_way():
    hello = wire.Hello(PROTOCOL_VERSION, "batches", "auto", END)
    found = wire.unpack_hello(_frames(wire.pack(wire.HELLO, hello)))
    assert found == hello
    assert found.end.identity() == IDENTITY and found.end.limits() == LinkLimits(3, 100)


def test_another_version_is_named_even_when_nothing_else_is_known():
    body = msgspec.msgpack.encode({"protocol": PROTOCOL_VERSION + 1, "shape": "unknown"})
    with pytest.raises(ProtocolError, match="same version of dflash-mesh"):
        wire.unpack_hello(_frames([wire.HELLO, body]))


def test_a_hello_without_credit_or_with_a_path_is_refused():
    with pytest.raises(ProtocolError, match="credit"):
        msgspec.structs.replace(END, max_bytes=0).limits()
    with pytest.raises(ProtocolError, match="incarnation"):
        msgspec.structs.replace(END, incarnation="../../etc").identity()


def test_credit_survives_the_way():
    assert wire.unpack_credit(_frames(wire.pack_credit(2**40 + 1))) == 2**40 + 1
    with pytest.raises(ProtocolError):
        wire.unpack_credit(_frames([wire.CREDIT, b"1"]))
    with pytest.raises(ProtocolError):
        wire.unpack_credit(_frames([wire.CREDIT]))


def _swallow(parts):
    frames = _frames(parts)
    for decode in (
        wire.unpack_hello,
        wire.unpack_credit,
        wire.unpack_envelope,
        lambda parts: wire.unpack(parts, wire.Welcome),
        lambda parts: wire.unpack(parts, wire.Reason),
    ):
        try:
            decode(frames)
        except ProtocolError:
            continue


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_garbage_raises_nothing_else(parts):
    _swallow(parts)


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * 100_000,
        b"\x81\xa1x" * 50_000,
        b"\xc1",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\xa6run_id\xa2\xff\xff",
        msgspec.msgpack.encode({"payload": {"type": "nobody"}}),
    ],
    ids=["deep-list", "deep-map", "unused", "huge-map", "huge-bin", "no-text", "unknown-tag"],
)
def test_crafted_bodies_raise_nothing_else(body):
    _swallow([wire.DATA, body])
