"""A data folder with two ended runs: one whose every text is markup or very long, one as people
leave them after a stop."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sqlmodel import Session

from control_plane.store import Database, evaluations, events, ledger, runs, series, workers
from control_plane.store.series import Sample
from shared.api.events import CheckpointSaved
from shared.config import resolve_config
from shared.config.schema import GateSection
from shared.gates.ledger import GateLedger
from shared.layout import DataFolder
from shared.states import Role

RUN_ID = "20300101-000000-abcdef"
STOPPED_ID = "20300101-000000-000001"
BLOCK_REASON = "30 of 40 (75%) are exact_duplicate, gates.max_reason_share allows 50%"
BLOCK_CAUSE = "The same prompt got the same answer again."
MARKUP = "<img src=x onerror=\"document.title='broken'\"><script>window.broken = 1</script>"
LONG = "a-word-that-never-ends-" * 20


def fill(folder: Path) -> None:
    """Create the database that a control plane finds when it starts."""
    folder.mkdir(parents=True)
    # In a thread: the browser's driver keeps an event loop running in the tests' own.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(_fill(DataFolder(folder).database))).result()


async def _fill(path: Path) -> None:
    database = await Database.open(path)
    try:
        await database.write(_rows)
        await database.write(_stopped)
    finally:
        await database.close()


def _rows(session: Session) -> None:
    now = time.time()
    run = runs.create(
        session,
        run_id=RUN_ID,
        name=MARKUP,
        config={},
        config_sha256="0" * 64,
        progress={"step": 1200, "steps_total": 1200, "samples_accepted": 400},
        now=now,
    )
    run.state, run.reason, run.bottleneck = "completed", f"{MARKUP} {LONG}", MARKUP
    run.started_at, run.ended_at = now - 100, now
    run.loss, run.accuracy, run.acceptance_length = 1.25, 0.5, 3.14
    run.queues = [
        {"name": name, "depth": depth, "capacity": capacity, "bytes": 0, "capacity_bytes": 0}
        for name, depth, capacity in (("requests", 60, 64), ("server_0", 61, 58))
    ]
    session.add(run)
    for level in ("info", "error"):
        line: dict[str, Any] = {"role": "generator", "rank": 0, "level": level, "created_at": now}
        events.append(session, RUN_ID, "log", {**line, "message": f"{MARKUP} {LONG}"}, now=now)
    for role in (Role.GENERATOR, Role.DRAFTER_TRAINER):
        worker = workers.add_launch(
            session,
            run_id=RUN_ID,
            role=role,
            rank=0,
            incarnation=role.value,
            job_id=None,
            device="cpu",
            restarts=2,
            now=now,
        )
        worker.state, worker.ended_at = "exited", now
        worker.host, worker.last_error = LONG, f"{MARKUP} {LONG}"
        session.add(worker)
    _add_series(session, RUN_ID, now)


def _add_series(session: Session, run_id: str, now: float) -> None:
    samples = [Sample("loss", step, now, 4 - step / 400) for step in range(0, 1200, 100)]
    series.add(session, run_id, samples)


def _stopped(session: Session) -> None:
    now = time.time()
    run = runs.create(
        session,
        run_id=STOPPED_ID,
        name="plain",
        config=resolve_config(preset="demo").model_dump(mode="json"),
        config_sha256="0" * 64,
        progress={"step": 56, "steps_total": 112, "epoch": 2, "epochs_total": 4},
        now=now - 600,
    )
    run.state, run.reason = "stopped", "stopped"
    run.started_at, run.ended_at = now - 600, now - 300
    run.loss, run.acceptance_length = 167.665, 3.17
    session.add(run)
    saved = CheckpointSaved(
        number=0, step=56, epoch=2, next_micro_batch_id=1, loss=1.5, num_bytes=10**6, path="x"
    )
    ledger.add_checkpoint(session, STOPPED_ID, saved, now=now)
    result = {
        "acceptance_length": 3.17,
        "num_prompts": 32,
        "acceptance_length_on_baseline_prompts": 2.95,
        "baselines_num_prompts": 4,
        "baselines": {"untrained": 1.02, "prompt_lookup": 1.31},
        "equal_to_greedy": True,
        "target_score": {"correct": 29, "total": 32},
    }
    evaluation = evaluations.create(
        session, STOPPED_ID, checkpoint_step=56, num_prompts=None, now=now
    )
    evaluations.complete(session, evaluation.id, result, now=now)
    for role, job in ((Role.BATCHER, None), (Role.EVALUATOR, evaluation.id)):
        worker = workers.add_launch(
            session,
            run_id=STOPPED_ID,
            role=role,
            rank=0,
            incarnation=f"{role.value}-1",
            job_id=job,
            device="cpu",
            restarts=0,
            now=now,
        )
        worker.state, worker.ended_at, worker.host = "exited", now, "host.example"
        session.add(worker)
    rates = [Sample("trained_tokens_per_s", 2 * at, now, 100.0 * at) for at in range(100)]
    series.add(session, STOPPED_ID, rates)
    report = GateLedger(GateSection()).report()
    report |= {"blocked": True, "block_reason": BLOCK_REASON, "cause": BLOCK_CAUSE}
    runs.update(session, STOPPED_ID, now=now, gate_report=report)
