"""Whatever is cancelled, nothing is lost, held or left running."""

import asyncio

import numpy as np
import pytest

from services.links import Frame, LinkLimits, LinkTimeouts, dial
from shared.errors import LinkError
from shared.messages import CompletionsFrom
from tests.helpers.link_ends import (
    LIMITS,
    LINK,
    dial_to,
    dialer_identity,
    listening,
    new_run_id,
    pair,
    segments_of,
)

MB = 2**20


@pytest.fixture(autouse=True)
async def nothing_left():
    """No task and no segment outlives a test."""
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    assert left == set()


async def _cancel(task: asyncio.Task) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_links_leave_nothing_behind():
    async with pair() as ends:
        await ends.settle()
    assert segments_of(ends.run_id) == []


async def test_a_dial_that_is_given_up_leaves_nothing():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        dialing = asyncio.create_task(
            dial(
                LINK,
                f"tcp://127.0.0.1:{port}",
                dialer_identity("run"),
                limits=LIMITS,
                security=None,
            )
        )
        await asyncio.sleep(0.05)
        await _cancel(dialing)


async def test_a_dial_that_is_refused_leaves_nothing():
    run_id = new_run_id()
    async with listening(run_id) as listener:
        with pytest.raises(LinkError):
            await dial_to(listener, "elsewhere")


@pytest.mark.parametrize("plane", ["zmq", "shm"])
async def test_a_cancelled_send_has_sent_nothing_and_holds_nothing(plane):
    big = np.zeros(3 * MB, np.uint8)
    async with pair(plane=plane, limits=LinkLimits(2, 4 * MB)) as ends:
        await ends.dialed.send(CompletionsFrom(0), [Frame("x", "uint8", big.shape, big)])
        waiting = asyncio.create_task(
            ends.dialed.send(CompletionsFrom(1), [Frame("x", "uint8", big.shape, big)])
        )
        behind = asyncio.create_task(ends.dialed.send(CompletionsFrom(2)))
        await ends.settle()
        await _cancel(waiting)
        await behind
        for seq in (0, 2):
            with await ends.accepted.receive() as received:
                assert received.payload.seq == seq
        await ends.dialed.flush()

        # Cancelled in the middle of its work on the bytes: the place comes back too.
        for _ in range(20):
            sending = asyncio.create_task(
                ends.dialed.send(CompletionsFrom(3), [Frame("x", "uint8", big.shape, big)])
            )
            await asyncio.sleep(0)
            await _cancel(sending)
        assert ends.dialed.stats().bytes == 0
        whole = np.full(4 * MB, 9, np.uint8)
        await ends.dialed.send(CompletionsFrom(4), [Frame("x", "uint8", whole.shape, whole)])
        with await ends.accepted.receive() as received:
            assert received.payload.seq == 4
            assert (np.frombuffer(received.frames["x"].data, np.uint8) == 9).all()


async def test_a_cancelled_receive_loses_nothing():
    big = np.zeros(3 * MB, np.uint8)
    async with pair(plane="zmq", limits=LinkLimits(2, 8 * MB)) as ends:
        await _cancel_soon(ends.accepted.receive())
        await _cancel_soon(ends.listener.receive())
        await _cancel_soon(ends.listener.accept())
        await ends.dialed.send(CompletionsFrom(0), [Frame("x", "uint8", big.shape, big)])
        await ends.dialed.send(CompletionsFrom(1))
        await ends.settle()
        # The first has a checksum to compute off the loop: cancelled there, it stays.
        await _cancel_soon(ends.accepted.receive())
        await _cancel_soon(ends.listener.receive())
        for seq in (0, 1):
            with await ends.listener.receive() as received:
                assert received.payload.seq == seq


async def _cancel_soon(coroutine) -> None:
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    await _cancel(task)


async def test_a_close_that_is_cancelled_still_closes():
    run_id = new_run_id()
    async with listening(run_id) as listener:
        channel = await dial_to(listener, run_id, timeouts=LinkTimeouts(linger_s=0.2))
        await _cancel_soon(channel.close())
        await channel.close()
        await _cancel_soon(listener.close())


def test_the_end_of_the_loop_ends_links_that_nobody_closed():
    async def forget() -> None:
        run_id = new_run_id()
        async with listening(run_id) as listener:
            await dial_to(listener, run_id)

    asyncio.run(forget())
