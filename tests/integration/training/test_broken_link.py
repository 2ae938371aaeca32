"""A link between two living workers breaks: what was on its way comes again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import torch

from services.builtin import target_folder
from services.links import LinkSecurity, Listener
from services.target_models.frames import tensor_copy
from shared.dflash.target import TargetModel
from shared.messages import HiddenStates, TrainerPosition
from shared.states import Role
from tests.helpers.training_mesh import LIMITS, Mesh, TinyBatcher, content, make_plan


async def test_hidden_states_that_were_not_taken_are_sent_again(
    tmp_path: Path, make_mesh: Callable[..., Mesh]
):
    mesh = make_mesh(tmp_path)
    batcher = TinyBatcher(mesh, make_plan(2))
    batcher.position = TrainerPosition(0, 4, 2**20, reset=True)
    serving = asyncio.create_task(batcher.run())
    identity = mesh.identity(Role.DRAFTER_TRAINER)
    listener = await Listener.bind(
        "hidden_states",
        identity,
        host="127.0.0.1",
        limits=LIMITS,
        security=LinkSecurity.from_keys(mesh.keys),
        plane="auto",
    )
    try:
        mesh.add_listener(identity, {"hidden_states": listener.endpoint})
        forward = mesh.start(Role.TARGET_FORWARD)
        taken = await listener.receive()
        taken.release()
        lost = await listener.receive()
        await lost.channel.close()

        seen: dict[int, torch.Tensor] = {}
        while not {1, 2, 3} <= seen.keys():
            with await listener.receive() as received:
                message = received.payload
                assert isinstance(message, HiddenStates)
                states = tensor_copy(received.frames["target_hidden_states"])
                seen[message.micro_batch.micro_batch_id] = states
        assert batcher.num_sent == 4
        _compare(batcher, seen)
        await mesh.drain(forward)
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        await listener.close()


def _compare(batcher: TinyBatcher, seen: dict[int, torch.Tensor]) -> None:
    """Batched and stripped of padding, the states are those of each sample alone."""
    target = TargetModel.load(target_folder("builtin:tiny"))
    micro_batch = batcher.plan[2]
    input_ids, _ = content(micro_batch)
    alone = [
        target.hidden_states(sample[None], target_layer_ids=(1, 5))[0]
        for sample in input_ids.split(micro_batch.lengths)
    ]
    torch.testing.assert_close(seen[2], torch.cat(alone), rtol=1e-3, atol=1e-3)
