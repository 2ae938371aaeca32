"""The evaluator: one job, from a checkpoint to evaluations/ID.json.

    held-out prompts + target + checkpoint's drafter -> measure (a thread) -> file, EvaluationDone

A restart measures again from the start: the result depends on the checkpoint and the run alone.
A drain gives the measurement up before its next pass of the target. The worker leaves only when
the thread has ended: until then it beats, since a process cannot end before its threads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import torch

from services.builtin import target_folder
from services.checkpoint_folders import CompleteCheckpoint, find_checkpoint
from services.data.tokenizer import TargetTokenizer
from services.files import write_json
from services.target_models.untrained import untrained_drafter
from shared.api.events import EvaluationDone
from shared.config import RunConfig
from shared.dflash.export import load_drafter
from shared.dflash.target import TargetModel
from shared.states import WorkerState
from workers.evaluator.measure import EvaluationSettings, Progress, measure
from workers.evaluator.prompts import held_out_rows, render
from workers.runtime import WorkerContext
from workers.runtime.target import checked_target

logger = logging.getLogger(__name__)


class MeasurementAbandoned(Exception):
    """The worker was asked to leave; not an error."""


async def main(context: WorkerContext) -> None:
    """Carry out the job of this worker, then wait until draining is asked."""
    assert context.job is not None, "an evaluator is started for one evaluation"
    config, job = context.config, context.job
    if config.evaluate.num_threads is not None:
        torch.set_num_threads(config.evaluate.num_threads)
    checkpoint = find_checkpoint(context.folder, job.get("checkpoint_step"))
    num_prompts = job.get("num_prompts") or config.evaluate.num_prompts
    await checked_target(context)
    context.set_state(WorkerState.RUNNING)
    loop = asyncio.get_running_loop()

    def report(done: int, total: int) -> None:
        progress = {"prompts_done": done, "prompts_total": total}
        loop.call_soon_threadsafe(context.progress.update, progress)

    give_up = threading.Event()

    def go_on() -> None:
        if give_up.is_set():
            raise MeasurementAbandoned

    with context.meter.busy():
        result = await _until_draining(
            context,
            give_up,
            asyncio.to_thread(
                evaluate_checkpoint,
                config,
                checkpoint,
                num_prompts,
                context.device,
                report,
                go_on=go_on,
            ),
        )
    if result is None:
        context.milestone("the measurement was given up: this evaluator was asked to leave")
        return
    context.meter.count_tokens(result["generated_tokens"])
    path = context.folder.evaluations / f"{job['id']}.json"
    await asyncio.to_thread(write_json, path, result)
    context.announce_file(path, "metadata")
    context.emit(EvaluationDone, evaluation_id=job["id"], result=result)
    context.set_state(WorkerState.FINISHED)
    context.milestone(
        f"acceptance length {result['acceptance_length']} at step {result['checkpoint_step']}, "
        f"{result['num_prompts']} prompts, "
        + ("equal to greedy" if result["equal_to_greedy"] else f"{result['num_unequal']} unequal")
    )
    await context.draining.wait()


async def _until_draining(
    context: WorkerContext, give_up: threading.Event, work: Coroutine[Any, Any, dict[str, Any]]
) -> dict[str, Any] | None:
    """The result of `work`, or None when draining is asked first: then the job starts anew.

    Returns when the thread of `work` has ended, which `give_up` brings about.
    """
    measuring = asyncio.create_task(work)
    draining = asyncio.create_task(context.draining.wait())
    try:
        await asyncio.wait([measuring, draining], return_when=asyncio.FIRST_COMPLETED)
        if draining.done():
            give_up.set()
        return await measuring
    except MeasurementAbandoned:
        return None
    finally:
        give_up.set()  # also when this task is cancelled: a thread cannot be
        for future in (measuring, draining):
            future.cancel()


def evaluate_checkpoint(
    config: RunConfig,
    checkpoint: CompleteCheckpoint,
    num_prompts: int,
    device: str,
    on_progress: Progress,
    *,
    go_on: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Measure a checkpoint on the run's first held-out prompts; synchronous.

    `go_on` is called before every pass of the target and may raise to give the measurement up.
    Raises DataError, TargetModelError, DrafterError; IntegrityError when the drafter's files are
    not what the trainer wrote.
    """
    checkpoint.verify_drafter()
    folder = target_folder(config.target.path)
    device = usable_device(device)
    rows = held_out_rows(config)[:num_prompts]
    tokenizer = TargetTokenizer.load(folder)
    target = TargetModel.load(folder, config.target.dtype, device)
    target.before_step = go_on
    model = load_drafter(checkpoint.folder.drafter, device=device)
    prompts = render(rows, tokenizer, thinking=config.generator.thinking, room=target.max_length)
    untrained = untrained_drafter(model.config, config.seed)
    result = measure(
        target,
        model,
        prompts,
        EvaluationSettings(
            config.evaluate.max_new_tokens, tokenizer.eos_ids, config.evaluate.baselines
        ),
        untrained=untrained.to(device, target.dtype).eval(),
        decode=tokenizer.decode,
        on_progress=on_progress,
    )
    return {"checkpoint_step": checkpoint.step, **result}


def usable_device(device: str) -> str:
    """'auto' becomes 'cuda' where there is one, else 'cpu'."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def read_result(path: Path) -> dict[str, Any]:
    """The result that an evaluation left on disk."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result
