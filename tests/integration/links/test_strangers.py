"""Garbage, broken peers and wrong keys: each costs at most its own channel."""

import asyncio
import contextlib
import os
import pickle
import random
from pathlib import Path

import msgspec
import pytest

import services.links
from services.links import LinkSecurity, LinkTimeouts, Listener, make_link_keys, wire
from services.links.frames import checksums_of
from shared.errors import ChannelClosed, IntegrityError, LinkError
from shared.messages import PROTOCOL_VERSION, CompletionsFrom, FrameSpec
from tests.helpers.link_ends import LIMITS, RawPeer, dial_to, eventually, listening, new_run_id

MESSAGE = CompletionsFrom(0)


class _Trap:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


async def _still_serves(listener: Listener, run_id: str, security=None) -> None:
    async with await dial_to(listener, run_id, rank=3, security=security) as channel:
        await channel.send(CompletionsFrom(42))
        with await listener.receive() as received:
            assert received.payload == CompletionsFrom(42)


@pytest.fixture(params=["plain", "encrypted"])
def security(request):
    return LinkSecurity.from_keys(make_link_keys()) if request.param == "encrypted" else None


async def test_raw_bytes_on_the_port_do_no_harm(security):
    run_id = new_run_id()
    dice = random.Random(1)
    greeting = bytes.fromhex("ff00000000000000017f03") + b"\x00NULL" + bytes(16) + bytes(32)
    openings = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01" + dice.randbytes(300),
        greeting,
        greeting + dice.randbytes(500),
        greeting + b"\x02" + b"\xff" * 8,
        b"",
        *(dice.randbytes(dice.randrange(1, 3000)) for _ in range(20)),
    ]
    async with listening(run_id, security=security) as listener:
        port = int(listener.endpoint.rpartition(":")[2])
        for opening in openings:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(TimeoutError, OSError):
                writer.write(opening)
                writer.write_eof()
                async with asyncio.timeout(0.05):
                    await reader.read(1000)
            writer.close()
        await _still_serves(listener, run_id, security)


async def test_garbage_in_messages_does_no_harm(tmp_path):
    run_id = new_run_id()
    dice = random.Random(2)
    trap = pickle.dumps(_Trap(tmp_path / "sprung"))
    kinds = [b"H", b"W", b"R", b"D", b"C", b"P", b"B", b"", b"\x80\x04", b"Z" * 100]
    async with listening(run_id) as listener, RawPeer(listener.endpoint, run_id) as peer:
        for kind in kinds:
            await peer.send([kind])
            await peer.send([kind, trap])
            await peer.send([kind, b"", trap])
            for _ in range(10):
                parts = [dice.randbytes(dice.randrange(60)) for _ in range(dice.randrange(5))]
                await peer.send([kind, *parts])
        await peer.send([trap])
        await eventually(lambda: listener.num_strangers >= 10 * len(kinds))
        assert listener.channels == []
        await _still_serves(listener, run_id)
    assert not (tmp_path / "sprung").exists()


async def test_hellos_of_broken_content_are_refused():
    run_id = new_run_id()
    good = {"run_id": run_id, "worker_id": "w", "role": "batcher", "rank": 0, "host": "h"}
    ends = [
        good | {"incarnation": "../../x", "max_messages": 1, "max_bytes": 1},
        good | {"incarnation": "a", "max_messages": 0, "max_bytes": 1},
        good | {"incarnation": "a", "max_messages": 1, "max_bytes": -5},
        good | {"incarnation": 5, "max_messages": 1, "max_bytes": 1},
        good | {"run_id": ["x"], "incarnation": "a", "max_messages": 1, "max_bytes": 1},
        None,
    ]
    async with listening(run_id) as listener:
        for end in ends:
            async with RawPeer(listener.endpoint, run_id) as peer:
                hello = {
                    "protocol": PROTOCOL_VERSION,
                    "link": "batches",
                    "plane": "zmq",
                    "end": end,
                }
                await peer.send([wire.HELLO, msgspec.msgpack.encode(hello)])
                kind, _ = await peer.answer()
                assert kind == wire.REFUSE
        assert listener.channels == []
        await _still_serves(listener, run_id)


def _frame(data: bytes, **changes) -> tuple[FrameSpec, bytes]:
    fields = {
        "name": "x",
        "dtype": "uint8",
        "shape": (len(data),),
        "num_bytes": len(data),
        "checksum": checksums_of([data])[0],
    }
    return FrameSpec(**(fields | changes)), data


@pytest.mark.parametrize("num_bytes", [1000, 3 * 2**20])
async def test_bytes_that_changed_on_the_way_are_found_and_end_the_channel(num_bytes):
    run_id = new_run_id()
    async with listening(run_id) as listener, RawPeer(listener.endpoint, run_id) as peer:
        await peer.hello()
        channel = await listener.accept()
        await peer.data(MESSAGE, [_frame(b"x" * num_bytes)])
        (await channel.receive()).release()
        data = bytearray(num_bytes)
        data[num_bytes // 2] ^= 4
        spec, _ = _frame(bytes(num_bytes))
        await peer.data(MESSAGE, [(spec, bytes(data))])
        with pytest.raises(
            IntegrityError, match=r"link 'batches' with target_forward-7 .*: frame 'x' arrived"
        ):
            await listener.receive()
        assert channel.closed and listener.channels == []
        with pytest.raises(ChannelClosed, match="crc32"):
            await channel.receive()
        await _still_serves(listener, run_id)


def _violations(run_id: str):
    return {
        "another run": lambda peer: peer.data(MESSAGE, run_id="elsewhere"),
        "another sender": lambda peer: peer.data(MESSAGE, sender="somebody"),
        "a gap": lambda peer: peer.data(MESSAGE, number=5),
        "a missing frame": lambda peer: peer.data(MESSAGE, frames=[_frame(b"ab")[0]]),
        "a frame too many": lambda peer: peer.data(MESSAGE, [_frame(b"ab")], frames=[]),
        "a wrong size": lambda peer: peer.data(MESSAGE, [_frame(b"ab", num_bytes=3)]),
        "a wrong shape": lambda peer: peer.data(MESSAGE, [_frame(b"ab", shape=(1,))]),
        "an unknown dtype": lambda peer: peer.data(MESSAGE, [_frame(b"ab", dtype="object")]),
        "a foreign segment": lambda peer: peer.data(
            MESSAGE, frames=[_frame(b"ab")[0]], shm_name="../../etc/passwd", shm_offsets=[0]
        ),
        "a missing segment": lambda peer: peer.data(
            MESSAGE,
            frames=[_frame(b"ab")[0]],
            shm_name=f"dflash-mesh-{run_id}-rawpeer1-999999",
            shm_offsets=[0],
        ),
        "credit for nothing": lambda peer: peer.send(wire.pack_credit(0)),
        "no envelope": lambda peer: peer.send([wire.DATA]),
        "a second hello": lambda peer: peer.send([wire.HELLO, b"\x80"]),
        "an unknown kind": lambda peer: peer.send([b"Q", b"x"]),
    }


@pytest.mark.parametrize("violation", _violations("x"))
async def test_a_peer_that_breaks_the_protocol_loses_its_channel_only(violation):
    run_id = new_run_id()
    async with (
        listening(run_id) as listener,
        await dial_to(listener, run_id) as honest,
        RawPeer(listener.endpoint, run_id) as peer,
    ):
        kept = await listener.accept()
        await peer.hello()
        channel = await listener.accept()
        await _violations(run_id)[violation](peer)
        kind, body = await peer.answer()
        assert kind == wire.BYE and b"broke the link protocol" in body
        async with asyncio.timeout(10):
            with pytest.raises(ChannelClosed, match="broke the link protocol"):
                await channel.receive()
        await honest.send(MESSAGE)
        (await kept.receive()).release()


async def test_a_peer_that_sends_without_credit_loses_its_channel():
    run_id = new_run_id()
    async with listening(run_id) as listener, RawPeer(listener.endpoint, run_id) as peer:
        await peer.hello()
        channel = await listener.accept()
        for _ in range(LIMITS.max_messages + 1):
            await peer.data(MESSAGE)
        for _ in range(LIMITS.max_messages):
            await channel.receive()
        with pytest.raises(ChannelClosed, match="exceeds the credit granted"):
            await channel.receive()


async def test_only_the_keys_of_the_run_get_in():
    run_id = new_run_id()
    ours, theirs = make_link_keys(), make_link_keys()
    security = LinkSecurity.from_keys(ours)
    quick = LinkTimeouts(hello_s=1.0)
    client_of_theirs = theirs.model_copy(
        update={"server_public": ours.server_public, "server_secret": ours.server_secret}
    )
    async with listening(run_id, security=security) as listener:
        with pytest.raises(LinkError, match="rejects the link keys"):
            await dial_to(
                listener,
                run_id,
                security=LinkSecurity.from_keys(client_of_theirs),
                timeouts=quick,
            )
        with pytest.raises(LinkError, match="no answer from"):
            await dial_to(listener, run_id, security=LinkSecurity.from_keys(theirs), timeouts=quick)
        with pytest.raises(LinkError, match="no answer from"):
            await dial_to(listener, run_id, security=None, timeouts=quick)
        assert listener.channels == [] and listener.num_strangers == 0
        await _still_serves(listener, run_id, security)
    async with listening(run_id, security=None) as listener:
        with pytest.raises(LinkError, match="no answer from"):
            await dial_to(listener, run_id, security=security, timeouts=quick)


async def test_an_encrypted_link_shows_no_content_on_the_wire():
    run_id = new_run_id()
    security = LinkSecurity.from_keys(make_link_keys())
    seen = bytearray()
    async with listening(run_id, security=security, plane="zmq") as listener:
        port = int(listener.endpoint.rpartition(":")[2])

        async def tap(reader, writer):
            there, here = await asyncio.open_connection("127.0.0.1", port)

            async def copy(source, sink):
                while data := await source.read(65536):
                    seen.extend(data)
                    sink.write(data)
                sink.close()

            await asyncio.gather(copy(reader, here), copy(there, writer))

        async with await asyncio.start_server(tap, "127.0.0.1", 0) as server:
            tapped = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            listener.endpoint = tapped
            channel = await dial_to(listener, run_id, security=security, plane="zmq")
            await channel.send(CompletionsFrom(0))
            (await listener.receive()).release()
            await channel.flush()
            await channel.close()
    assert len(seen) > 500
    assert run_id.encode() not in seen and b"target_forward" not in seen


def test_nothing_here_unpickles():
    for source in Path(services.links.__file__).parent.glob("*.py"):
        text = source.read_text()
        assert "import pickle" not in text and "pyobj" not in text, source.name
