"""From micro-batches to checkpoints over real links, undisturbed and with workers killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file

from shared.api.events import CheckpointRemoved, CheckpointSaved, StepTaken
from shared.layout import RunFolder
from shared.states import Role, WorkerState
from tests.helpers.damage import flip_bit
from tests.helpers.training_mesh import Mesh, TinyBatcher, events_of, make_plan, series_of
from workers.drafter_trainer.checkpoints import CheckpointStore

NUM_STEPS = 9
MakeMesh = Callable[..., Mesh]


@asynccontextmanager
async def batcher_of(mesh: Mesh, *, is_messy: bool = False) -> AsyncIterator[TinyBatcher]:
    batcher = TinyBatcher(mesh, make_plan(NUM_STEPS), is_messy=is_messy)
    running = asyncio.create_task(batcher.run())
    try:
        yield batcher
    finally:
        running.cancel()
        await asyncio.wait([running])


def final_weights(folder: Path) -> bytes:
    newest = CheckpointStore(RunFolder(folder), keep=3).newest()
    assert newest is not None and newest.step == NUM_STEPS
    return (newest.folder.drafter / "model.safetensors").read_bytes()


async def train_undisturbed(mesh: Mesh, *, is_messy: bool = False) -> TinyBatcher:
    async with batcher_of(mesh, is_messy=is_messy) as batcher:
        forward = mesh.start(Role.TARGET_FORWARD)
        trainer = mesh.start(Role.DRAFTER_TRAINER)
        await batcher.finished.wait()
        assert mesh.contexts[trainer].state is WorkerState.FINISHED
        await mesh.drain(forward)
        await mesh.drain(trainer)
        return batcher


async def test_a_plan_is_trained_checkpointed_and_reported(tmp_path: Path, make_mesh: MakeMesh):
    mesh = make_mesh(tmp_path)
    async with batcher_of(mesh) as batcher:
        forward = mesh.start(Role.TARGET_FORWARD)
        trainer = mesh.start(Role.DRAFTER_TRAINER)
        await batcher.finished.wait()
        await mesh.drain(forward)
        context = await mesh.drain(trainer)
    steps = events_of(context, StepTaken)
    assert [event.step for event in steps] == list(range(1, NUM_STEPS + 1))
    assert [record["step"] for record in series_of(tmp_path)] == list(range(1, NUM_STEPS + 1))
    assert steps[-1].loss < steps[0].loss
    assert [event.step for event in events_of(context, CheckpointSaved)] == [2, 4, 6, 8, 9]
    assert [event.step for event in events_of(context, CheckpointRemoved)] == [2, 4]
    assert context.progress["next_micro_batch_id"] == 2 * NUM_STEPS
    weights = load_file(tmp_path / "checkpoints" / "step_00000009" / "drafter/model.safetensors")
    assert len(weights) == 11 * 2 + 3


async def test_second_copies_and_any_order_train_the_same_drafter(
    tmp_path: Path, make_mesh: MakeMesh
):
    plain, messy = tmp_path / "plain", tmp_path / "messy"
    batcher = await train_undisturbed(make_mesh(plain))
    assert batcher.num_sent == 2 * NUM_STEPS
    batcher = await train_undisturbed(make_mesh(messy), is_messy=True)
    assert batcher.num_sent > 2 * NUM_STEPS
    assert series_of(messy) == series_of(plain)
    assert final_weights(messy) == final_weights(plain)


async def test_killed_workers_change_no_bit(tmp_path: Path, make_mesh: MakeMesh):
    plain, disturbed = tmp_path / "plain", tmp_path / "disturbed"
    await train_undisturbed(make_mesh(plain))

    mesh = make_mesh(disturbed)
    async with batcher_of(mesh) as batcher:
        forward = mesh.start(Role.TARGET_FORWARD)
        trainer = mesh.start(Role.DRAFTER_TRAINER)
        await batcher.reached(7)  # in the middle of the fourth step
        await mesh.kill(trainer)
        trainer = mesh.start(Role.DRAFTER_TRAINER)
        await batcher.reached(11)
        await mesh.kill(forward)
        forward = mesh.start(Role.TARGET_FORWARD)
        await batcher.finished.wait()
        await mesh.drain(forward)
        await mesh.drain(trainer)
    assert series_of(disturbed) == series_of(plain)
    assert final_weights(disturbed) == final_weights(plain)


@pytest.mark.parametrize("damage", ["torn", "flipped"])
async def test_a_drain_saves_the_last_step_and_a_bad_checkpoint_is_passed_over(
    tmp_path: Path, make_mesh: MakeMesh, damage: str
):
    plain, resumed = tmp_path / "plain", tmp_path / "resumed"
    await train_undisturbed(make_mesh(plain))

    mesh = make_mesh(resumed)
    async with batcher_of(mesh) as batcher:
        forward = mesh.start(Role.TARGET_FORWARD)
        trainer = mesh.start(Role.DRAFTER_TRAINER)
        await batcher.reached(11)
        await mesh.drain(trainer)
        store = CheckpointStore(RunFolder(resumed), keep=3)
        newest = store.newest()
        assert newest is not None and newest.step >= 5
        assert newest.read_state()["next_micro_batch_id"] == 2 * newest.step
        if damage == "torn":
            newest.folder.complete_marker.unlink()
        else:
            flip_bit(newest.folder.drafter / "model.safetensors")
        trainer = mesh.start(Role.DRAFTER_TRAINER)
        await batcher.finished.wait()
        await mesh.drain(forward)
        await mesh.drain(trainer)
    assert series_of(resumed) == series_of(plain)
    assert final_weights(resumed) == final_weights(plain)


async def test_a_finished_trainer_says_so_again_after_a_restart(
    tmp_path: Path, make_mesh: MakeMesh
):
    mesh = make_mesh(tmp_path)
    await train_undisturbed(mesh)
    before = series_of(tmp_path)
    async with batcher_of(mesh) as batcher:
        trainer = mesh.start(Role.DRAFTER_TRAINER)
        await batcher.finished.wait()
        assert batcher.num_sent == 0
        await mesh.drain(trainer)
    assert series_of(tmp_path) == before
