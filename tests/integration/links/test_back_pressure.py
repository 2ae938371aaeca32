"""A slow receiver makes its sender wait, and memory stays within the credit."""

import asyncio

import numpy as np
import pytest

from services.links import Channel, Frame, LinkLimits
from shared.messages import CompletionsFrom
from tests.helpers.link_ends import eventually, pair, segments_of

PAGE = 4096
MB = 2**20


@pytest.fixture(params=["zmq", "shm"])
def plane(request):
    return request.param


def _frame(num_bytes: int) -> Frame:
    return Frame("x", "uint8", (num_bytes,), np.zeros(num_bytes, np.uint8))


class Producer:
    """Sends without end; `num_sent` says how far it got."""

    def __init__(self, channel: Channel, num_bytes: int) -> None:
        self.num_sent = 0
        self._channel = channel
        self._frame = _frame(num_bytes)

    async def run(self, num_messages: int) -> None:
        for number in range(num_messages):
            await self._channel.send(CompletionsFrom(number), [self._frame])
            self.num_sent += 1


@pytest.mark.parametrize(
    ("limits", "num_bytes", "expected"),
    [
        (LinkLimits(5, 2**30), 100_000, 5),  # messages bind
        (LinkLimits(50, MB), 300_000, 3),  # bytes bind
        (LinkLimits(50, MB), 10_000, 50),  # small messages, inline on every plane
    ],
)
async def test_a_sender_stops_at_the_credit_and_goes_on_with_each_release(
    plane, limits, num_bytes, expected
):
    async with pair(limits=limits, plane=plane) as ends:
        producer = Producer(ends.dialed, num_bytes)
        task = asyncio.create_task(producer.run(expected + 3))
        await eventually(lambda: ends.accepted.stats("received").depth == expected)
        await ends.settle()
        assert producer.num_sent == expected
        sent = ends.dialed.stats()
        assert sent.depth == expected and sent.bytes == expected * num_bytes
        assert (sent.capacity, sent.capacity_bytes) == (limits.max_messages, limits.max_bytes)
        assert sent.wait_s > 0.0
        report = sent.queue_report("batches")
        assert (report.depth, report.bytes) == (expected, expected * num_bytes)

        held = [await ends.accepted.receive() for _ in range(expected)]
        await ends.settle()
        assert producer.num_sent == expected, "receiving alone gives no credit"
        for released in range(1, 4):
            held.pop().release()  # the newest first: order does not matter
            await ends.settle()
            assert producer.num_sent == expected + released
        await task
        for received in held:
            received.release()
            received.release()  # a second release is nothing
        for _ in range(3):
            (await ends.accepted.receive()).release()
        await ends.dialed.flush()
        assert ends.dialed.stats().depth == ends.accepted.stats("received").depth == 0


async def test_a_long_stream_stays_within_the_credit(plane):
    limits = LinkLimits(4, 4 * MB)
    async with pair(limits=limits, plane=plane) as ends:
        producer = Producer(ends.dialed, 700_000)
        task = asyncio.create_task(producer.run(100))
        for _ in range(100):
            with await ends.accepted.receive():
                stats = ends.dialed.stats()
                assert stats.depth <= 4 and stats.bytes <= 4 * MB
                if plane == "shm":
                    (segment,) = segments_of(ends.run_id)
                    assert segment.stat().st_blocks * 512 <= 4 * MB
                    assert segment.stat().st_size == 4 * MB
        await task
        assert ends.accepted.stats("received").bytes_total == 70_000_000


async def test_a_message_larger_than_the_whole_credit_passes_alone(plane):
    async with pair(limits=LinkLimits(8, MB), plane=plane) as ends:
        data = np.random.default_rng(1).bytes(5 * MB)
        async with asyncio.TaskGroup() as group:
            group.create_task(ends.dialed.send(CompletionsFrom(0), [_frame(200_000)]))
            group.create_task(
                ends.dialed.send(CompletionsFrom(1), [Frame("x", "uint8", (5 * MB,), data)])
            )
            group.create_task(ends.dialed.send(CompletionsFrom(2), [_frame(1)]))
            first = await ends.accepted.receive()
            await ends.settle()
            assert ends.accepted.stats("received").depth == 1, "it waits until nothing is out"
            first.release()
            second = await ends.accepted.receive()
            assert second.frames["x"].data == data
            await ends.settle()
            assert ends.accepted.stats("received").depth == 1, "nothing passes beside it"
            second.release()
            (await ends.accepted.receive()).release()


async def test_without_a_hole_in_memory_a_sender_waits_for_one():
    limits = LinkLimits(8, 64 * PAGE)
    async with pair(limits=limits, plane="shm") as ends:
        for number in range(3):
            await ends.dialed.send(CompletionsFrom(number), [_frame(20 * PAGE)])
        held = [await ends.accepted.receive() for _ in range(3)]
        held[0].release()
        await ends.settle()
        # 24 pages of credit are left, in holes of 20 and 4.
        waiting = asyncio.create_task(ends.dialed.send(CompletionsFrom(3), [_frame(24 * PAGE)]))
        await ends.settle()
        assert not waiting.done()
        held[1].release()
        await waiting
        received = await ends.accepted.receive()
        assert received.payload == CompletionsFrom(3)
        received.release()
        held[2].release()


async def test_flush_waits_for_the_last_release(plane):
    async with pair(plane=plane) as ends:
        await ends.dialed.flush()
        await ends.dialed.send(CompletionsFrom(0), [_frame(100_000)])
        await ends.dialed.send(CompletionsFrom(1))
        flushed = asyncio.create_task(ends.dialed.flush())
        (await ends.accepted.receive()).release()
        last = await ends.accepted.receive()
        await ends.settle()
        assert not flushed.done()
        last.release()
        async with asyncio.timeout(10):
            await flushed
