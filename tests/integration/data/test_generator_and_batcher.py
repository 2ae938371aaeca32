"""Generator and batcher over real links, with the shipped target and the embedded engine."""

import asyncio
import json
import shutil
from contextlib import asynccontextmanager

import numpy as np
import pytest

from services.data.dataset import read_dataset
from services.data.source import open_split
from services.links import LinkLimits
from shared.api.events import GateReport, SegmentSealed
from shared.messages import Completion, MicroBatch, TrainerPosition
from shared.states import DesiredState, Role, WorkerState
from tests.helpers.completion_logs import read_log
from tests.helpers.damage import flip_bit
from tests.helpers.mesh_contexts import Workplace, events, kill, tiny_config
from workers.batcher import worker as batcher_worker
from workers.generator import worker as generator_worker
from workers.generator.log import CompletionLog
from workers.runtime.dialing import dial_peer


def start(place, role):
    main = {Role.GENERATOR: generator_worker.main, Role.BATCHER: batcher_worker.main}[role]
    context = place.context(role)
    return context, asyncio.create_task(main(context))


async def drain(*pairs):
    for context, task in pairs:
        context.drain()
        async with asyncio.timeout(20):
            await task


class Peers:
    """A target_forward and a trainer at the ends of the batcher's links: they take micro-batches,
    apply them in order, and say where they stand."""

    def __init__(self, place, window=4):
        self.place, self.window = place, window
        self.received: list[int] = []
        self.applied: dict[int, MicroBatch] = {}
        self.tokens: dict[int, list[int]] = {}
        self.moved = asyncio.Event()

    @property
    def position(self):
        position = 0
        while position in self.applied:
            position += 1
        return position

    @property
    def finished(self):
        return any(one.last for one in self.applied.values())

    async def forward(self, rank):
        context = self.place.context(Role.TARGET_FORWARD, rank)
        channel = await dial_peer(context, Role.BATCHER, "batches", LinkLimits(2, 2**20))
        async with channel:
            while True:
                with await channel.receive() as received:
                    one = received.payload
                    ids = np.frombuffer(received.frames["input_ids"].data, np.int64).tolist()
                    assert len(ids) == sum(one.lengths) == len(received.frames["loss_mask"].data)
                self.received.append(one.micro_batch_id)
                before = self.applied.setdefault(one.micro_batch_id, one)
                assert before == one, "a second copy is the same micro-batch"
                self.tokens[one.micro_batch_id] = ids
                self.moved.set()

    async def train(self):
        context = self.place.context(Role.DRAFTER_TRAINER)
        channel = await dial_peer(context, Role.BATCHER, "positions", LinkLimits(4, 2**20))
        reset = True
        async with channel:
            while True:
                self.moved.clear()
                position = TrainerPosition(
                    self.position, self.window, 2**30, reset=reset, finished=self.finished
                )
                reset = False
                await channel.send(position)
                await self.moved.wait()

    @asynccontextmanager
    async def running(self, num_workers=1):
        tasks = [asyncio.create_task(self.forward(rank)) for rank in range(num_workers)]
        tasks.append(asyncio.create_task(self.train()))
        try:
            yield tasks
        finally:
            for task in tasks:
                await kill(task)


def log_bytes(place):
    return b"".join(p.read_bytes() for p in sorted(place.root.glob("completions/batch_*.jsonl")))


def shard_hashes(place):
    return [one.sha256 for one in read_dataset(place.root / "dataset").segments]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The whole data side once, without trouble: what every disturbed run must equal."""

    async def run():
        place = Workplace(tmp_path_factory.mktemp("undisturbed"), tiny_config())
        generator, batcher = start(place, Role.GENERATOR), start(place, Role.BATCHER)
        peers = Peers(place)
        async with peers.running():
            await place.until(lambda: batcher[0].state is WorkerState.FINISHED)
        assert generator[0].state is WorkerState.FINISHED
        await drain(batcher, generator)
        return place, peers, batcher[0]

    return asyncio.run(run())


def test_prompts_become_samples_that_train_exactly_once_an_epoch(undisturbed):
    place, peers, batcher = undisturbed
    log = read_log(batcher.folder)
    with open_split(place.config) as split:
        assert [one.prompt_index for one in log] == [row.index for row in split.training]
        assert {one.prompt_sha256 for one in log}.isdisjoint(row.sha256 for row in split.held_out)
    assert all("</think>" in one.text for one in log if one.finish_reason == "stop")
    info = read_dataset(batcher.folder.dataset)
    assert info.complete and info.num_prompts == 24 and info.num_samples >= 15
    assert [one.num_samples for one in info.segments[:-1]] == [5] * (len(info.segments) - 1)
    by_seq = {one.seq: one for one in log}
    batches = sorted(peers.applied.values(), key=lambda one: one.micro_batch_id)
    for epoch in range(2):
        seen = [one for batch in batches if batch.epoch == epoch for one in batch.sample_ids]
        assert sorted(seen) == list(range(info.num_samples))
    assert [batch.last for batch in batches] == [False] * (len(batches) - 1) + [True]
    texts = {tuple([*one.prompt_ids, *one.output_ids][:400]) for one in by_seq.values()}
    for batch in batches:
        ids, at = peers.tokens[batch.micro_batch_id], 0
        for length in batch.lengths:
            assert tuple(ids[at : at + length]) in texts
            at += length
    assert peers.received == sorted(peers.received), "nothing was lost, nothing went out twice"
    sealed = events(batcher, SegmentSealed)
    assert [event.sha256 for event in sealed] == [one.sha256 for one in info.segments]
    report = events(batcher, GateReport)[-1]
    assert not report.blocked and report.report["num_accepted"] == info.num_samples
    quarantined = sum(
        len(path.read_text().splitlines()) for path in batcher.folder.quarantine.glob("*.jsonl")
    )
    assert quarantined == 24 - info.num_samples
    progress = json.loads((place.root / "completions" / "progress.json").read_text())
    assert progress["completions_done"] == 24 and progress["finished"]
    assert batcher.progress["samples_accepted"] == info.num_samples


async def test_a_killed_generator_goes_on_and_the_log_is_the_same(tmp_path, undisturbed):
    place = Workplace(tmp_path, tiny_config())
    context, task = start(place, Role.GENERATOR)
    await place.until(lambda: context.progress.get("completions_done", 0) >= 8)
    await kill(task)
    torn = context.folder.completions_batch(0)
    torn.write_bytes(torn.read_bytes() + b'{"seq":99,"prompt_in')
    again = start(place, Role.GENERATOR)
    await place.until(lambda: again[0].state is WorkerState.FINISHED)
    await drain(again)
    assert log_bytes(place) == log_bytes(undisturbed[0])


async def test_batcher_and_workers_killed_at_any_moment_change_nothing(tmp_path, undisturbed):
    reference, expected, _ = undisturbed
    place = Workplace(tmp_path, tiny_config())
    generator, batcher = start(place, Role.GENERATOR), start(place, Role.BATCHER)
    peers = Peers(place, window=3)
    async with peers.running(num_workers=2) as tasks:
        await place.until(lambda: len(peers.applied) >= 2)
        await kill(tasks[0])  # a target_forward dies
        tasks[0] = asyncio.create_task(peers.forward(0))
        await kill(batcher[1])
        await kill(tasks[1])
        await kill(tasks[2])
        batcher = start(place, Role.BATCHER)
        tasks[1] = asyncio.create_task(peers.forward(1))
        tasks[2] = asyncio.create_task(peers.train())
        await place.until(lambda: len(peers.applied) >= 9)
        await kill(generator[1])
        generator = start(place, Role.GENERATOR)
        await place.until(lambda: batcher[0].state is WorkerState.FINISHED)
    await drain(batcher, generator)
    assert log_bytes(place) == log_bytes(reference)
    assert shard_hashes(place) == shard_hashes(reference)
    assert peers.applied == expected.applied and peers.tokens == expected.tokens
    for path in (reference.root / "quarantine").glob("*.jsonl"):
        assert (tmp_path / "quarantine" / path.name).read_bytes() == path.read_bytes()


async def test_a_damaged_and_a_lost_shard_are_made_again_from_the_log(tmp_path, undisturbed):
    shutil.copytree(undisturbed[0].root, tmp_path, dirs_exist_ok=True)
    place = Workplace(tmp_path, tiny_config())
    shards = sorted((tmp_path / "dataset").glob("*.arrow"))
    sound = [path.read_bytes() for path in shards]
    flip_bit(shards[1])
    shards[2].unlink()
    generator, batcher = start(place, Role.GENERATOR), start(place, Role.BATCHER)
    peers = Peers(place)
    async with peers.running():
        await place.until(lambda: batcher[0].state is WorkerState.FINISHED)
    await drain(batcher, generator)
    assert [path.read_bytes() for path in shards] == sound
    assert peers.applied == undisturbed[1].applied and peers.tokens == undisturbed[1].tokens


async def test_synchronous_mode_trains_the_same_plan_after_generation(tmp_path, undisturbed):
    place = Workplace(tmp_path, tiny_config({"train.mode": "synchronous"}))
    generator, batcher = start(place, Role.GENERATOR), start(place, Role.BATCHER)
    peers = Peers(place, window=1)
    async with peers.running():
        await place.until(lambda: peers.applied)
        assert read_dataset(tmp_path / "dataset").complete
        await place.until(lambda: batcher[0].state is WorkerState.FINISHED)
    await drain(batcher, generator)
    assert peers.applied == undisturbed[1].applied


async def test_training_from_the_shards_of_an_earlier_run(tmp_path, undisturbed):
    dataset = undisturbed[0].root / "dataset"
    config = tiny_config({"stages": ["train"], "data.dataset": str(dataset), "data.prompts": None})
    place = Workplace(tmp_path, config)
    batcher = start(place, Role.BATCHER)
    peers = Peers(place)
    async with peers.running():
        await place.until(lambda: batcher[0].state is WorkerState.FINISHED)
    await drain(batcher)
    expected = undisturbed[1].applied
    assert {i: x.sample_ids for i, x in peers.applied.items()} == {
        i: x.sample_ids for i, x in expected.items()
    }
    assert {x.steps_total for x in peers.applied.values()} == {
        max(x.step for x in expected.values()) + 1
    }


def useless(seq):
    """What a thinking model says when the prompt was rendered without the thinking tokens."""
    return Completion(
        seq=seq,
        prompt_index=seq,
        prompt_sha256=f"{seq:064x}",
        occurrence=0,
        prompt_ids=[7, 8, 9, 300 + seq],
        output_ids=[5, 6, 7, 8, 9, 10],
        finish_reason="stop",
        thinking=True,
        text="<think>\n\n</think>\n\nOK.<|im_end|>",
        sampling={},
    )


async def test_empty_thoughts_block_before_any_target_forward_and_a_person_may_go_on(
    tmp_path, undisturbed
):
    good = read_log(undisturbed[2].folder)
    place = Workplace(tmp_path, tiny_config())
    context = place.context(Role.GENERATOR)
    # 20 of 24 answers are useless; the log is complete, so the generator only serves it.
    mixed = [useless(seq) if seq % 6 else good[seq] for seq in range(24)]
    indices = [one.prompt_index for one in good]
    log = CompletionLog(context.folder, 10)
    log.append(
        [
            Completion(**{**{f: getattr(x, f) for f in x.__struct_fields__}, "prompt_index": i})
            for x, i in zip(mixed, indices, strict=True)
        ]
    )
    log.close()
    generator = (context, asyncio.create_task(generator_worker.main(context)))
    batcher = start(place, Role.BATCHER)
    peers = Peers(place)
    async with peers.running():
        await place.until(lambda: events(batcher[0], GateReport))
        blocked = events(batcher[0], GateReport)[-1]
        assert (
            blocked.blocked and blocked.report["num_seen"] == blocked.report["window"]["size"] == 6
        )
        assert "thinking_missing" in blocked.reason and "generator.thinking" in blocked.reason
        assert not peers.received and batcher[0].state is WorkerState.RUNNING
        place.publish(overrides=["gates"])
        await place.until(lambda: batcher[0].state is WorkerState.FINISHED)
    await drain(batcher, generator)
    assert read_dataset(tmp_path / "dataset").num_samples == 4
    lines = (tmp_path / "quarantine" / "thinking_missing.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [s for s in range(24) if s % 6]


async def test_pause_holds_after_the_group_and_draining_ends_after_it(tmp_path):
    place = Workplace(tmp_path, tiny_config({"generator.max_new_tokens": 24}))
    context, task = start(place, Role.GENERATOR)
    context.take_answer(DesiredState.PAUSE, [], [])
    await place.until(lambda: context.state is WorkerState.PAUSED)
    assert context.progress["completions_done"] == 0
    context.take_answer(DesiredState.RUN, [], [])
    await place.until(lambda: context.progress["completions_done"] >= 8)
    await drain((context, task))
    done = len(read_log(context.folder))
    progress = json.loads((tmp_path / "completions" / "progress.json").read_text())
    assert done % 8 == 0 and progress["completions_done"] == done
    assert progress["finished"] == (done == 24)
