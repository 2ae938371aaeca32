"""The batcher loop.

    generator --Completions--> Intake --segments--> DispatchDesk --MicroBatch--> target_forward
                                                        ^ TrainerPosition
                                                   drafter_trainer

With `data.dataset` the intake is replaced by the shards of an earlier run, judged again. Intake
waits for the generator, dispatch for data, gates and the trainer's window; nobody else waits for
the batcher. What is sealed lies on the disk; everything else is rebuilt at a restart from the log
and from what the trainer says of its position.

FINISHED: with the train stage when the trainer says that it has finished, else when the data set is
complete. The links stay open until draining is asked.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

from services.data.dataset import DatasetInfo
from services.links import LinkLimits, Listener
from shared.api.events import GateReport
from shared.errors import DataError
from shared.states import Stage, WorkerState
from workers.batcher.desk import DispatchDesk
from workers.batcher.dispatching import serve_batches, serve_positions
from workers.batcher.existing import judge_existing, open_existing
from workers.batcher.intake import GATES, Intake, announce_segment
from workers.batcher.repair import ShardRepair, damaged_shards, repair_shards
from workers.batcher.setup import BatcherSetup
from workers.runtime import WorkerContext

logger = logging.getLogger(__name__)


async def main(context: WorkerContext) -> None:
    """Run until draining is asked.

    Raises DataError, TargetModelError, DrafterError, IntegrityError, DiskFullError.
    """
    config = context.config
    setup = await asyncio.to_thread(BatcherSetup.read, config)
    desk = DispatchDesk(
        context.run_id,
        bytes_per_token=setup.bytes_per_token,
        hold_until_complete=config.train.mode == "synchronous",
    )
    trains = Stage.TRAIN in config.stages
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[None]] = []
        if trains:
            batches = await stack.enter_async_context(await _listen(context, "batches"))
            positions = await stack.enter_async_context(await _listen(context, "positions"))
            tasks += [
                group.create_task(serve_batches(context, batches, desk), name="batches"),
                group.create_task(serve_positions(positions, desk), name="positions"),
            ]
        context.set_state(WorkerState.RUNNING)
        tasks.append(group.create_task(_work(context, setup, desk, trains=trains), name="work"))
        await context.draining.wait()
        for task in tasks:
            task.cancel()


async def _listen(context: WorkerContext, name: str) -> Listener:
    links = context.config.links
    listener = await Listener.bind(
        name,
        context.identity,
        host=links.host,
        limits=LinkLimits(links.max_messages, links.max_bytes),
        security=context.security,
        plane=links.plane,
    )
    context.endpoints[name] = listener.endpoint
    return listener


async def _work(
    context: WorkerContext, setup: BatcherSetup, desk: DispatchDesk, *, trains: bool
) -> None:
    """Make the data set complete, then wait for the trainer to finish."""
    if context.config.data.dataset is not None:
        await _open_dataset(context, setup, desk, Path(context.config.data.dataset).expanduser())
    else:
        await _make_dataset(context, setup, desk)
    if trains:
        while not desk.dispatcher.finished:
            await desk.changed()
    context.set_state(WorkerState.FINISHED)


async def _make_dataset(context: WorkerContext, setup: BatcherSetup, desk: DispatchDesk) -> None:
    """From the generator's log; what is sealed already is dispatched at once, if it is sound."""
    info = await asyncio.to_thread(setup.load_info, context.folder)
    if info is not None:
        damaged = await asyncio.to_thread(damaged_shards, context.folder, info)
        if damaged:
            keeper = setup.keeper(info.num_prompts)
            await repair_shards(context, ShardRepair(context.folder, info, keeper, damaged))
        await asyncio.to_thread(_add_sealed, context, info, desk)
        for segment in info.segments:
            announce_segment(context, segment)
        desk.gates_open = info.gates_open
        desk.start_plan(setup.plan(info.num_prompts))
    if info is None or not info.complete:
        intake = Intake(context, setup, desk)
        context.add_queue("completions", intake.queue_report)
        info = await intake.run()
    else:
        assert desk.plan is not None
        desk.plan.mark_complete()
        desk.notify()
        context.progress.update(
            samples_accepted=info.num_samples,
            samples_quarantined=int(info.report.get("num_rejected", 0)),
        )
    context.milestone(
        f"data set complete: {info.num_samples} samples, {info.num_tokens} tokens in "
        f"{len(info.segments)} shards"
    )


def _add_sealed(context: WorkerContext, info: DatasetInfo, desk: DispatchDesk) -> None:
    for segment in info.segments:
        desk.store.add(context.folder.shard(segment.index), segment.num_bytes)


async def _open_dataset(
    context: WorkerContext, setup: BatcherSetup, desk: DispatchDesk, folder: Path
) -> None:
    """From the shards of an earlier run, after this run's gates have judged them."""
    info = await asyncio.to_thread(open_existing, folder, tokenizer_sha256=setup.facts.sha256)
    keeper = setup.keeper(info.num_samples)
    with context.meter.busy():
        await asyncio.to_thread(judge_existing, folder, info, keeper, desk.store)
    context.progress.update(
        samples_accepted=keeper.ledger.num_accepted,
        samples_quarantined=keeper.ledger.num_seen - keeper.ledger.num_accepted,
    )
    verdict = keeper.verdict(final=True)
    blocked = verdict.blocked and GATES not in context.overrides
    context.emit(GateReport, blocked=blocked, reason=verdict.text, report=keeper.report())
    if blocked:
        await context.wait_for_override(GATES)
    if not desk.store.num_samples:
        raise DataError(f"no sample of {folder} passed the quality gates; see the run's report")
    desk.gates_open = True
    plan = setup.plan(None)
    desk.start_plan(plan)
    plan.mark_complete()
    desk.notify()
    context.milestone(f"data set {folder}: {desk.store.num_samples} samples")
