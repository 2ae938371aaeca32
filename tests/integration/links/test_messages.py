"""What arrives is what was sent: order, completeness, content, in both directions."""

import asyncio

import numpy as np
import pytest
import torch

from services.links import Channel, Frame, LinkLimits, LinkSecurity, make_link_keys
from shared.errors import ChannelClosed
from shared.messages import (
    Completion,
    Completions,
    CompletionsFrom,
    FileClosed,
    HiddenStates,
    MicroBatch,
    TrainerPosition,
)
from tests.helpers.link_ends import dial_to, eventually, listening, new_run_id, pair

NUM_MESSAGES = 5000


@pytest.fixture(params=["zmq", "shm", "encrypted"])
def way(request):
    if request.param == "encrypted":
        return {"plane": "zmq", "security": LinkSecurity.from_keys(make_link_keys())}
    return {"plane": request.param, "security": None}


def _micro_batch(number: int) -> MicroBatch:
    return MicroBatch(
        run_id="r",
        micro_batch_id=number,
        epoch=1,
        step=2,
        index_in_step=0,
        num_in_step=4,
        steps_total=9,
        last=False,
        sample_ids=[number, number + 1],
        lengths=[3, 4],
        padded_length=8,
    )


async def _send_many(channel: Channel, offset: int) -> None:
    for number in range(NUM_MESSAGES):
        frames = []
        if number % 10 == 0:
            values = np.full(number % 3000, number + offset, np.int64)
            frames.append(Frame("values", "int64", values.shape, values))
        await channel.send(CompletionsFrom(seq=number + offset), frames)


async def _receive_many(channel: Channel, offset: int) -> None:
    for number in range(NUM_MESSAGES):
        with await channel.receive() as received:
            assert received.payload == CompletionsFrom(seq=number + offset)
            if number % 10 == 0:
                frame = received.frames["values"]
                assert (frame.dtype, frame.shape) == ("int64", (number % 3000,))
                values = np.frombuffer(frame.data, np.int64)
                assert values.size == number % 3000 and (values == number + offset).all()
                del values


async def test_thousands_of_messages_arrive_in_order_both_ways(way):
    async with pair(**way) as ends:
        async with asyncio.TaskGroup() as group:
            group.create_task(_send_many(ends.dialed, 0))
            group.create_task(_send_many(ends.accepted, 10**6))
            group.create_task(_receive_many(ends.accepted, 0))
            group.create_task(_receive_many(ends.dialed, 10**6))
        for channel in (ends.dialed, ends.accepted):
            await channel.flush()
            for direction in ("sent", "received"):
                stats = channel.stats(direction)
                assert stats.messages_total == NUM_MESSAGES
                assert (stats.depth, stats.bytes) == (0, 0)
                assert stats.bytes_total == sum(8 * (n % 3000) for n in range(0, NUM_MESSAGES, 10))


async def test_every_payload_survives(way):
    completion = Completion(0, 1, "ab", 0, [1, 2], [3], "stop", None, "hé", {"seed": 1, "t": 0.5})
    payloads = [
        Completions([completion], next_seq=1, final=True, num_failed=2, num_prompts=7),
        CompletionsFrom(3),
        _micro_batch(4),
        HiddenStates(_micro_batch(5), [1, 9, 17], [6], 0.25),
        TrainerPosition(4, 8, 2**40, reset=True),
        FileClosed("dataset/shard_00000.arrow", 12, "cd", "shard"),
    ]
    async with pair(**way) as ends:
        for payload in payloads:
            await ends.dialed.send(payload)
            with await ends.accepted.receive() as received:
                assert received.payload == payload
                assert received.channel is ends.accepted


@pytest.mark.parametrize("num_rows", [0, 3, 5000])
async def test_frames_become_tensors_without_a_copy(way, num_rows):
    states = torch.arange(num_rows * 16, dtype=torch.float32).reshape(num_rows, 16)
    states = states.to(torch.bfloat16)
    frame = Frame("states", "bfloat16", (num_rows, 16), states.view(torch.uint8).numpy())
    async with pair(**way) as ends:
        await ends.dialed.send(CompletionsFrom(0), [frame])
        received = await ends.accepted.receive()
        found = received.frames["states"]
        if num_rows:
            tensor = torch.frombuffer(found.data, dtype=torch.bfloat16).reshape(found.shape)
            assert torch.equal(tensor, states)
            tensor += 1  # the bytes are the receiver's to write until the release
            del tensor
        else:
            assert memoryview(found.data).nbytes == 0
        received.release()
        if num_rows:
            with pytest.raises(ValueError, match="released"):
                memoryview(found.data)


async def test_a_small_frame_may_be_reused_as_soon_as_send_returns(way):
    scratch = np.zeros(120_000, np.uint8)
    async with pair(**way) as ends:
        for number in range(8):
            scratch[:] = number
            await ends.dialed.send(
                CompletionsFrom(number), [Frame("x", "uint8", (120_000,), scratch)]
            )
        scratch[:] = 99
        for number in range(8):
            with await ends.accepted.receive() as received:
                assert set(bytes(received.frames["x"].data)) == {number}


async def test_messages_of_several_senders_take_turns(way):
    run_id = new_run_id()
    async with listening(run_id, **way) as listener:
        channels = [await dial_to(listener, run_id, rank=rank, **way) for rank in range(3)]
        for rank, channel in enumerate(channels):
            for number in range(5):
                await channel.send(CompletionsFrom(seq=100 * rank + number))
        accepted = [await listener.accept() for _ in range(3)]
        await eventually(lambda: all(c.stats("received").depth == 5 for c in accepted))
        seqs = []
        for _ in range(15):
            with await listener.receive() as received:
                seqs.append(received.payload.seq)
        for rank in range(3):
            mine = [seq for seq in seqs if seq // 100 == rank]
            assert mine == sorted(mine) and len(mine) == 5
        for turn in range(0, 15, 3):
            assert {seq // 100 for seq in seqs[turn : turn + 3]} == {0, 1, 2}
        assert listener.stats().messages_total == 15
        for channel in channels:
            await channel.close()


async def test_what_was_sent_before_a_close_still_arrives(way):
    async with pair(limits=LinkLimits(8, 2**24), **way) as ends:
        data = np.random.default_rng(0).bytes(2**21)
        for number in range(6):
            await ends.dialed.send(CompletionsFrom(number), [Frame("x", "uint8", (2**21,), data)])
        await ends.dialed.close()
        for number in range(6):
            with await ends.accepted.receive() as received:
                assert received.payload == CompletionsFrom(number)
                assert received.frames["x"].data == data
        with pytest.raises(ChannelClosed, match="the peer says: "):
            await ends.accepted.receive()


async def test_concurrent_sends_keep_the_order_of_their_calls(way):
    async with pair(limits=LinkLimits(2, 2**22), **way) as ends:
        data = bytes(2**21)
        frames = [Frame("x", "uint8", (2**21,), data)]
        async with asyncio.TaskGroup() as group:
            for number in range(12):
                size = frames if number % 3 == 0 else []
                group.create_task(ends.dialed.send(CompletionsFrom(number), size))
            for number in range(12):
                with await ends.accepted.receive() as received:
                    assert received.payload.seq == number
