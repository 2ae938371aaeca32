"""Segments on the links: used, removed, and done without when memory is full."""

import errno
import logging
import os

import numpy as np
import pytest

from services.links import Frame, LinkLimits, shm
from services.links.identity import SHM_FOLDER
from shared.messages import CompletionsFrom
from tests.helpers.link_ends import dial_to, listening, new_run_id, pair, segments_of

NUM_BYTES = 300_000


def _frames(value: int) -> list[Frame]:
    return [Frame("x", "uint8", (NUM_BYTES,), np.full(NUM_BYTES, value, np.uint8))]


async def test_large_frames_lie_in_one_segment_that_goes_with_the_channel():
    async with pair(plane="shm") as ends:
        await ends.dialed.send(CompletionsFrom(0))
        assert segments_of(ends.run_id) == [], "small messages need none"
        for number in range(10):
            await ends.dialed.send(CompletionsFrom(number), _frames(number))
            await ends.accepted.send(CompletionsFrom(number), _frames(100 + number))
            if number == 0:
                (await ends.accepted.receive()).release()
            for channel, value in ((ends.accepted, number), (ends.dialed, 100 + number)):
                with await channel.receive() as received:
                    assert set(bytes(received.frames["x"].data)) == {value}
            await ends.settle()
        names = [path.name for path in segments_of(ends.run_id)]
        assert len(names) == 2, "one for each direction"
        assert all(path.stat().st_blocks * 512 < 2 * NUM_BYTES for path in segments_of(ends.run_id))
        assert any("-dialer1-" in name for name in names)
        assert any("-listener1-" in name for name in names)
    assert segments_of(ends.run_id) == []


async def test_messages_outlive_their_channel():
    async with pair(plane="shm") as ends:
        await ends.dialed.send(CompletionsFrom(0), _frames(7))
        await ends.dialed.send(CompletionsFrom(1), _frames(8))
        received = await ends.accepted.receive()
        await ends.dialed.close()
        assert segments_of(ends.run_id) == []
        assert set(bytes(received.frames["x"].data)) == {7}
        later = await ends.accepted.receive()
        assert set(bytes(later.frames["x"].data)) == {8}
        received.release()
        later.release()


async def test_the_socket_plane_makes_no_segments():
    async with pair(plane="zmq") as ends:
        await ends.dialed.send(CompletionsFrom(0), _frames(1))
        with await ends.accepted.receive():
            assert segments_of(ends.run_id) == []


@pytest.mark.parametrize(
    ("call", "number"),
    [("posix_fallocate", errno.ENOSPC), ("ftruncate", errno.ENOSPC), ("open", errno.EACCES)],
)
async def test_unusable_memory_sends_through_the_socket_with_one_warning(
    monkeypatch, caplog, call, number
):
    def full(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    async with pair(plane="shm") as ends:
        with monkeypatch.context() as patch:
            patch.setattr(shm.os, call, full)
            with caplog.at_level(logging.WARNING, "services.links"):
                await ends.dialed.send(CompletionsFrom(0), _frames(1))
                await ends.dialed.send(CompletionsFrom(0), _frames(2))
        (record,) = [r for r in caplog.records if r.name == "services.links.outbox"]
        message = record.getMessage()
        assert os.strerror(number) in message and "lower links.max_bytes" in message
        for value in (1, 2):
            with await ends.accepted.receive() as received:
                assert set(bytes(received.frames["x"].data)) == {value}
        await ends.dialed.send(CompletionsFrom(1), _frames(3))
        with await ends.accepted.receive() as received:
            assert set(bytes(received.frames["x"].data)) == {3}
        assert len(segments_of(ends.run_id)) == 1, "the third found room"
    assert segments_of(ends.run_id) == []


async def test_a_segment_larger_than_the_memory_of_the_host_does_not_fill_it():
    """Segments are sparse: credit of a terabyte costs what is in flight."""
    before = os.statvfs(SHM_FOLDER).f_bavail
    async with pair(plane="shm", limits=LinkLimits(8, 2**40)) as ends:
        await ends.dialed.send(CompletionsFrom(0), _frames(1))
        with await ends.accepted.receive():
            used = (before - os.statvfs(SHM_FOLDER).f_bavail) * os.statvfs(SHM_FOLDER).f_frsize
            assert used < 100 * 2**20


async def test_several_dialers_have_segments_of_their_own():
    run_id = new_run_id()
    async with listening(run_id) as listener:
        channels = [await dial_to(listener, run_id, rank=r, incarnation=f"inc{r}") for r in (0, 1)]
        for rank, channel in enumerate(channels):
            await channel.send(CompletionsFrom(rank), _frames(rank))
        assert len(segments_of(run_id)) == 2
        await channels[0].close()
        assert [p.name.split("-")[3] for p in segments_of(run_id)] == ["inc1"]
        await channels[1].close()
    assert segments_of(run_id) == []
