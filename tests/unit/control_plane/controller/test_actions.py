"""What people do to runs, against a real SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from control_plane.controller import actions
from control_plane.store import Database, evaluations, runs
from shared.errors import ConflictError
from shared.states import RunEvent, RunState


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(tmp_path / "control_plane.sqlite")
    yield opened
    await opened.close()


async def create(database: Database, run_id: str, max_queued: int | None = None) -> None:
    await database.write(
        runs.create,
        run_id=run_id,
        name="demo",
        config={"name": "demo"},
        config_sha256="0" * 64,
        progress={},
        now=10.0,
        max_queued=max_queued,
    )


async def evaluate(database: Database, now: float, problem: str | None) -> None:
    made = await database.write(
        evaluations.create, "r1", checkpoint_step=None, num_prompts=None, now=now, final=True
    )
    if problem is not None:
        await database.write(evaluations.fail, made.id, problem, now=now)


async def finals(database: Database) -> list[tuple[str, bool]]:
    rows = await database.read(evaluations.list_for_run, "r1")
    return [(row.state, row.final) for row in rows]


async def test_a_failed_final_evaluation_is_retired_by_the_next_attempt(
    database: Database,
) -> None:
    await create(database, "r1")
    await database.write(actions.launch, "r1", now=11.0)
    await evaluate(database, 12.0, "no GPU")
    await evaluate(database, 3.0, None)  # made later, on a clock that was set back
    assert await finals(database) == [("failed", True), ("queued", True)]
    await database.write(runs.transition, "r1", RunEvent.FAIL, now=4.0)
    await database.write(actions.resume, "r1", mode="drain", now=5.0)
    await database.write(actions.launch, "r1", now=6.0)
    assert await finals(database) == [("failed", False), ("queued", True)]


async def test_a_run_taken_up_again_makes_its_final_evaluation_anew(database: Database) -> None:
    await create(database, "r1")
    await database.write(actions.launch, "r1", now=11.0)
    await evaluate(database, 12.0, "the control plane went away")
    await database.write(actions.pause_for_shutdown, now=13.0)
    await database.write(actions.take_up, resume=True, now=14.0)
    assert await finals(database) == [("failed", False)]


async def test_the_queue_has_an_end(database: Database) -> None:
    for run_id in ("r1", "r2"):
        await create(database, run_id, max_queued=2)
    with pytest.raises(ConflictError, match=r"2 runs wait already.*--max-queued-runs"):
        await create(database, "r3", max_queued=2)
    assert await database.read(runs.list_queued) == ["r1", "r2"]
    await database.write(actions.launch, "r1", now=11.0)
    await create(database, "r3", max_queued=2)
    assert await database.read(runs.count_in_states, [RunState.QUEUED]) == 2
