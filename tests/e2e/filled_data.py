"""A data folder that holds one ended run whose every text is markup, or very long."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sqlmodel import Session

from control_plane.store import Database, events, runs, series, workers
from control_plane.store.series import Sample
from shared.layout import DataFolder
from shared.states import Role

RUN_ID = "20300101-000000-abcdef"
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
    samples = [Sample("loss", step, now, 4 - step / 400) for step in range(0, 1200, 100)]
    series.add(session, RUN_ID, samples)
