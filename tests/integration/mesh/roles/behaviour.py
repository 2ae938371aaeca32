"""What a test role does: steered by `ROLE.behaviour` in the run folder.

(no file)  counts ticks until it drains           crash     raises an error that may be cured
fatal      raises an error that is final          stubborn  never drains
finish     reports that its work is done          block     reports a closed quality gate
disk-full  raises DiskFullError                slow      an evaluator that takes 1.5 s to leave
"""

from __future__ import annotations

import asyncio
import contextlib
import json

from shared.api.events import CheckpointSaved, EvaluationDone, ExportProgress, GateReport
from shared.errors import DataError, DiskFullError, LinkError
from shared.states import Role, WorkerState
from workers.runtime import WorkerContext

TICK_S = 0.05


def behaviour(context: WorkerContext) -> str | None:
    path = context.folder.root / f"{context.role.value}.behaviour"
    return path.read_text() if path.exists() else None


async def main(context: WorkerContext) -> None:
    if context.job is not None:
        await run_job(context)
        return
    context.endpoints[f"{context.role.value}-link"] = "tcp://127.0.0.1:1"
    context.set_state(WorkerState.RUNNING)
    context.folder.completions.mkdir(exist_ok=True)
    context.progress["completions_done"] = 0
    reported = False
    while not context.draining.is_set():
        await context.wait_while_paused()
        context.progress["completions_done"] += 1
        context.meter.count_tokens(10)
        wanted = behaviour(context)
        if wanted == "crash":
            raise LinkError("this role crashes on request")
        if wanted == "fatal":
            raise DataError("prompts.jsonl line 3: not JSON")
        if wanted == "disk-full":
            raise DiskFullError("no space left for shard 7")
        if wanted == "stubborn":
            await asyncio.Event().wait()
        if wanted == "block" and not reported and "gates" not in context.overrides:
            reported = True
            context.emit(
                GateReport, blocked=True, reason="truncated: 80 % of 256", report={"window": 256}
            )
        if wanted == "finish" and context.state is WorkerState.RUNNING:
            finish(context)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK_S):
                await context.draining.wait()
    (context.folder.root / f"{context.role.value}.drained").write_text(context.incarnation)


def finish(context: WorkerContext) -> None:
    if context.role is Role.DRAFTER_TRAINER:
        folder = context.folder.checkpoint(1)
        folder.drafter.mkdir(parents=True, exist_ok=True)
        folder.complete_marker.write_text('{"files": {}}')
        context.progress["step"] = 1
        context.emit(
            CheckpointSaved,
            step=1,
            next_micro_batch_id=1,
            epoch=0,
            num_bytes=2,
            path=str(folder.root),
        )
    context.set_state(WorkerState.FINISHED)


async def run_job(context: WorkerContext) -> None:
    job = context.job
    assert job is not None
    context.set_state(WorkerState.RUNNING)
    if context.role is Role.EVALUATOR and behaviour(context) == "stubborn":
        await asyncio.Event().wait()
    if context.role is Role.EVALUATOR and behaviour(context) == "slow":
        await context.draining.wait()
        await asyncio.sleep(1.5)
        return
    if context.role is Role.EVALUATOR:
        result = {"acceptance_length": 3.5, "checkpoint_step": job["checkpoint_step"]}
        context.emit(EvaluationDone, evaluation_id=job["id"], result=result)
        return
    wanted = behaviour(context)
    if wanted == "crash":
        raise LinkError("the store is away")
    figures = {"files_total": 2, "bytes_total": 10}
    if wanted == "stubborn":
        context.emit(
            ExportProgress,
            export_id=job["id"],
            state="running",
            files_done=1,
            bytes_done=5,
            **figures,
        )
        await context.draining.wait()
        return
    (context.folder.root / "job.json").write_text(json.dumps(job))
    context.emit(
        ExportProgress,
        export_id=job["id"],
        state="completed",
        files_done=2,
        bytes_done=10,
        manifest_sha256="0" * 64,
        **figures,
    )
