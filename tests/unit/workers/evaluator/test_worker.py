"""The evaluator as a worker: told to leave in the middle of a measurement, it leaves."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from services.checkpoint_folders import marker_bytes
from services.target_models.drafter_shape import drafter_config
from services.target_models.untrained import untrained_drafter
from shared.api.events import EvaluationDone
from shared.dflash.export import save_drafter
from shared.layout import RunFolder
from shared.states import Role, WorkerState
from shared.tiny_target import model_folder
from tests.helpers.mesh_contexts import Workplace, events, kill, tiny_config
from workers.evaluator import worker

# Minutes of decoding on one thread: only giving up ends it in time.
SETTINGS = {
    "data.num_prompts": 200,
    "data.held_out_share": 0.5,
    "evaluate.num_prompts": 64,
    "evaluate.max_new_tokens": 900,
    "evaluate.device": "cpu",
}


@pytest.fixture
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A context with a job; events: the measurement decodes, the measurement has ended."""
    config = tiny_config(SETTINGS)
    checkpoint = RunFolder(tmp_path).checkpoint(1)
    save_drafter(
        checkpoint.drafter, untrained_drafter(drafter_config(config, model_folder()), seed=1)
    )
    checkpoint.complete_marker.write_bytes(marker_bytes(checkpoint, 1))
    begun, ended = threading.Event(), threading.Event()
    measure = worker.measure

    def watched(target: Any, *given: Any, **more: Any) -> Any:
        step = target.step

        def first_step(*given: Any, **more: Any) -> Any:
            begun.set()
            return step(*given, **more)

        target.step = first_step
        try:
            return measure(target, *given, **more)
        finally:
            ended.set()

    monkeypatch.setattr(worker, "measure", watched)

    def make() -> Any:
        context = Workplace(tmp_path, config).context(Role.EVALUATOR)
        context.job = {"id": "eval-1", "checkpoint_step": 1, "num_prompts": None}
        return context, begun, ended

    return make


async def test_a_drain_gives_the_measurement_up_and_waits_for_its_thread(at_work: Any) -> None:
    context, begun, ended = at_work()
    async with asyncio.timeout(55):
        main = asyncio.create_task(worker.main(context))
        assert await asyncio.to_thread(begun.wait, 50)
        context.drain()
        assert context.state is WorkerState.DRAINING
        await main
    assert ended.is_set()
    assert events(context, EvaluationDone) == []


async def test_a_cancelled_worker_leaves_no_thread_at_work(at_work: Any) -> None:
    context, begun, ended = at_work()
    async with asyncio.timeout(55):
        main = asyncio.create_task(worker.main(context))
        assert await asyncio.to_thread(begun.wait, 50)
        await kill(main)
        assert await asyncio.to_thread(ended.wait, 10)
