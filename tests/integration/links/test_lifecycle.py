"""How channels begin and end: hellos, closes, deaths, silence, new incarnations."""

import asyncio
import os
import signal
import sys
import time
from contextlib import asynccontextmanager

import pytest

from services.links import LinkTimeouts, Listener, dial, remove_stale_segments
from shared.errors import ChannelClosed, EnvironmentFault, LinkError
from shared.messages import CompletionsFrom
from tests.helpers.link_ends import (
    LIMITS,
    LINK,
    QUICK,
    RawPeer,
    dial_to,
    dialer_identity,
    eventually,
    listener_identity,
    listening,
    new_run_id,
    pair,
    segments_of,
)

MESSAGE = CompletionsFrom(0)


@asynccontextmanager
async def _process(*arguments: str):
    """A peer in a process of its own, ended in the end; yields it with its first line printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.helpers.link_peer",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        line = (await process.stdout.readline()).decode().strip()
        yield process, line
    finally:
        process.stdin.close()
        if process.returncode is None:
            os.kill(process.pid, signal.SIGCONT)
        async with asyncio.timeout(20):
            await process.wait()
        await process.stdout.read()


async def test_both_ends_know_whom_they_speak_to():
    async with pair() as ends:
        assert ends.accepted.peer == dialer_identity(ends.run_id)
        assert ends.dialed.peer == listener_identity(ends.run_id)
        assert ends.dialed.peer_role == "batcher" and ends.accepted.peer_rank == 0
        assert ends.accepted.peer_incarnation == "dialer1"
        assert ends.dialed.plane == ends.accepted.plane == "shm"
        assert ends.listener.channels == [ends.accepted]


async def test_a_killed_dialer_is_noticed_and_its_next_incarnation_gets_in():
    run_id = new_run_id()
    async with listening(run_id) as listener:
        async with _process("dial", listener.endpoint, run_id, "first001") as (process, line):
            assert line == "ready"
            channel = await listener.accept()
            received = await channel.receive()
            assert channel.plane == "shm" and len(segments_of(run_id)) == 1
            process.kill()
            killed = time.monotonic()
            async with asyncio.timeout(10):
                with pytest.raises(ChannelClosed, match="the peer is gone"):
                    await channel.receive()
            assert time.monotonic() - killed < 5
            assert listener.channels == []
            assert bytes(received.frames["big"].data) == bytes(range(256)) * 1024
            received.release()
            with pytest.raises(ChannelClosed):
                await channel.send(MESSAGE)
        (orphan,) = segments_of(run_id)
        assert remove_stale_segments(run_id, {"listener1"}) == [orphan.name]
        assert segments_of(run_id) == []
        async with _process("dial", listener.endpoint, run_id, "second02"):
            channel = await listener.accept()
            assert channel.peer_incarnation == "second02"
            (await listener.receive()).release()


async def test_a_killed_listener_is_noticed():
    run_id = new_run_id()
    async with _process("listen", run_id) as (process, endpoint):
        identity = dialer_identity(run_id)
        channel = await dial(LINK, endpoint, identity, limits=LIMITS, security=None, timeouts=QUICK)
        async with channel:
            process.kill()
            async with asyncio.timeout(5):
                with pytest.raises(ChannelClosed, match="lost its connection"):
                    await channel.receive()
            assert channel.closed


async def test_a_process_that_stands_still_is_silent_and_its_channel_ends():
    run_id = new_run_id()
    timeouts = LinkTimeouts(hello_s=10.0, ping_s=0.05, silence_s=1.0, linger_s=0.2)
    async with (
        listening(run_id, timeouts=timeouts) as listener,
        _process("dial", listener.endpoint, run_id, "stopped1") as (process, _),
    ):
        channel = await listener.accept()
        (await channel.receive()).release()
        os.kill(process.pid, signal.SIGSTOP)
        async with asyncio.timeout(10):
            with pytest.raises(ChannelClosed, match=r"heard nothing for 1\.\d s"):
                await channel.receive()


async def test_an_idle_channel_stays_open():
    timeouts = LinkTimeouts(hello_s=10.0, ping_s=0.02, silence_s=0.5, linger_s=0.2)
    async with pair(timeouts=timeouts) as ends:
        loop = asyncio.get_running_loop()
        silent_until = loop.time() + 1.2
        await eventually(lambda: loop.time() > silent_until)
        assert not ends.dialed.closed and not ends.accepted.closed
        await ends.settle()


async def test_a_process_that_was_held_up_itself_does_not_blame_its_peers():
    timeouts = LinkTimeouts(hello_s=10.0, ping_s=0.02, silence_s=0.3, linger_s=0.2)
    async with pair(timeouts=timeouts) as ends:
        time.sleep(0.8)  # noqa: ASYNC251 - the loop is meant to stand still
        await ends.settle()
        assert not ends.dialed.closed and not ends.accepted.closed


async def test_a_close_by_the_listener_reaches_every_dialer():
    run_id = new_run_id()
    async with listening(run_id) as listener:
        channels = [await dial_to(listener, run_id, rank=rank) for rank in range(3)]
        accepted = [await listener.accept() for _ in channels]
        accepting = asyncio.create_task(listener.accept())
        receiving = asyncio.create_task(listener.receive())
        await asyncio.sleep(0)
        await listener.close()
        for channel in channels:
            with pytest.raises(ChannelClosed, match="the listener was closed"):
                await channel.receive()
            await channel.close()
        for task in (receiving, accepting):
            with pytest.raises(ChannelClosed, match="listener is closed"):
                await task
        assert all(channel.closed for channel in accepted) and listener.channels == []
        await listener.close()  # again: nothing


async def test_a_closed_channel_says_so_to_whoever_waits_on_it():
    async with pair() as ends:
        for number in range(LIMITS.max_messages):
            await ends.dialed.send(CompletionsFrom(number))
        waiting = [
            asyncio.create_task(ends.dialed.send(MESSAGE)),
            asyncio.create_task(ends.dialed.send(MESSAGE)),
            asyncio.create_task(ends.dialed.flush()),
            asyncio.create_task(ends.dialed.receive()),
        ]
        await asyncio.sleep(0)
        await ends.accepted.close()
        for task in waiting:
            with pytest.raises(ChannelClosed, match="the peer says: "):
                await task
        assert "the peer says: " in (ends.dialed.end_reason or "")


@pytest.mark.parametrize("closes_first", ["dialed", "accepted", "listener"])
async def test_an_end_is_answered_before_its_connection_goes(closes_first, caplog):
    """Otherwise the closing end would wait out its linger time, and say so."""
    async with pair() as ends:
        await getattr(ends, closes_first).close()
        assert ends.accepted.parted and ends.accepted.closed
        assert "no answer" not in caplog.text
        with pytest.raises(ChannelClosed):
            await (ends.accepted if closes_first == "dialed" else ends.dialed).receive()
    assert "no answer" not in caplog.text


async def test_a_peer_that_dies_instead_of_answering_holds_up_nobody():
    run_id = new_run_id()
    timeouts = LinkTimeouts(ping_s=0.02, linger_s=30.0)
    async with listening(run_id, timeouts=timeouts) as listener:
        async with RawPeer(listener.endpoint, run_id) as peer:
            await peer.hello()
            channel = await listener.accept()
            closing = asyncio.create_task(channel.close())
            assert (await peer.answer())[0] == b"B"
        async with asyncio.timeout(10):
            await closing


async def test_a_new_hello_of_the_same_worker_ends_its_earlier_channel():
    run_id = new_run_id()
    async with listening(run_id) as listener:
        first = await dial_to(listener, run_id, incarnation="first001")
        other = await dial_to(listener, run_id, rank=1)
        second = await dial_to(listener, run_id, incarnation="second02")
        async with asyncio.timeout(10):
            with pytest.raises(ChannelClosed, match="dialed anew"):
                await first.receive()
        assert {c.peer_incarnation for c in listener.channels} == {"dialer1", "second02"}
        accepted = [await listener.accept(), await listener.accept()]
        assert [c.peer_rank for c in accepted] == [1, 0], "the ended one is not handed out"
        for channel in (first, other, second):
            await channel.close()


async def test_a_dial_that_nobody_answers_says_why():
    run_id = new_run_id()
    async with listening(run_id) as listener:
        endpoint = listener.endpoint
    timeouts = LinkTimeouts(hello_s=0.3)
    with pytest.raises(LinkError, match=r"no answer from .* within 0.3 s: nothing listens there"):
        await dial(
            LINK,
            endpoint,
            dialer_identity(run_id),
            limits=LIMITS,
            security=None,
            timeouts=timeouts,
        )
    with pytest.raises(LinkError, match="no address to dial"):
        await dial(LINK, "host:1", dialer_identity(run_id), limits=LIMITS, security=None)


async def test_a_listener_that_says_nothing_is_told_from_one_that_is_not_there():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(LinkError, match=r"within 0\.3 s: it "):
            await dial(
                LINK,
                f"tcp://127.0.0.1:{port}",
                dialer_identity("run"),
                limits=LIMITS,
                security=None,
                timeouts=LinkTimeouts(hello_s=0.3),
            )


async def test_a_hello_to_the_wrong_place_is_refused_with_the_reason():
    run_id = new_run_id()
    async with listening(run_id) as listener:
        with pytest.raises(LinkError, match=f"this is run {run_id}, not elsewhere"):
            await dial_to(listener, "elsewhere")
        with pytest.raises(LinkError, match="this is link 'batches', not 'positions'"):
            await dial(
                "positions",
                listener.endpoint,
                dialer_identity(run_id),
                limits=LIMITS,
                security=None,
            )
        async with RawPeer(listener.endpoint, run_id) as peer:
            kind, body = await peer.hello(protocol=99)
            assert kind == b"R" and b"same version of dflash-mesh" in body
        async with RawPeer(listener.endpoint, run_id) as peer:
            kind, body = await peer.hello(plane="shm")
            assert kind == b"R" and b"'auto' or 'zmq'" in body
        assert listener.channels == []


async def test_a_peer_on_another_host_gets_the_socket_plane():
    run_id = new_run_id()
    async with listening(run_id) as listener, RawPeer(listener.endpoint, run_id) as peer:
        kind, _ = await peer.hello(plane="auto")
        assert kind == b"W"
        assert (await listener.accept()).plane == "zmq"


async def test_a_message_on_an_unknown_connection_is_answered_with_an_end():
    """A dialer whose connection comes back at a restarted listener learns it at once."""
    run_id = new_run_id()
    async with listening(run_id) as listener, RawPeer(listener.endpoint, run_id) as peer:
        await peer.data(MESSAGE)
        kind, body = await peer.answer()
        assert kind == b"B" and b"dial again" in body
        assert listener.num_strangers == 1


async def test_an_address_that_is_not_here_is_refused_with_the_field():
    for host in ("203.0.113.7", "no-such-host.invalid"):
        with pytest.raises(EnvironmentFault, match=r"links\.host"):
            await Listener.bind(
                LINK, listener_identity("run"), host=host, limits=LIMITS, security=None
            )


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "*", "127.0.0.1"])
async def test_names_and_wildcards_give_an_endpoint_that_can_be_dialed(host):
    run_id = new_run_id()
    listener = await Listener.bind(
        LINK, listener_identity(run_id), host=host, limits=LIMITS, security=None, timeouts=QUICK
    )
    async with listener:
        assert "0.0.0.0" not in listener.endpoint and "*" not in listener.endpoint
        async with await dial_to(listener, run_id) as channel:
            await channel.send(MESSAGE)
            (await listener.receive()).release()
