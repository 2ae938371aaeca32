"""The wall clock is set back while a run goes on: only what is shown may notice."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.settings import Settings
from control_plane.store import workers
from shared.api.workers import Heartbeat
from shared.states import RunState
from tests.integration.mesh.test_controller import Mesh, RecordingLauncher, open_mesh


class WallClock:
    """Right, until somebody sets it."""

    offset_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset_s


@pytest.fixture
def wall() -> WallClock:
    return WallClock()


@pytest.fixture
async def mesh(tmp_path: Path, wall: WallClock) -> AsyncIterator[Mesh]:
    async with open_mesh(Settings(tmp_path / "data"), RecordingLauncher(), clock=wall) as opened:
        yield opened


async def running(mesh: Mesh, **supervision: float) -> str:
    run_id = await mesh.submit(**supervision)
    await mesh.register_all(run_id)
    await mesh.until_state(run_id, RunState.RUNNING)
    return run_id


async def test_a_silent_worker_is_replaced_after_backoff_all_the_same(
    mesh: Mesh, wall: WallClock
) -> None:
    run_id = await running(mesh, lease_s=0.5, heartbeat_s=0.1, backoff_s=0.4)
    first = {w.id for w in await mesh.live(run_id)}
    wall.offset_s = -300.0

    async def ended_at() -> float | None:
        rows = await mesh.database.read(workers.list_for_run, run_id)
        return time.monotonic() if all(w.ended_at for w in rows if w.id in first) else None

    killed_s = await mesh.until(ended_at)

    async def replaced() -> bool:
        return len({w.id for w in await mesh.live(run_id)} - first) == 2

    await mesh.until(replaced)
    assert time.monotonic() - killed_s > 0.3
    rows = await mesh.database.read(workers.list_for_run, run_id)
    assert {w.id for w in rows[:2]} == first  # in order of launch, whatever the times say


async def test_figures_go_on(mesh: Mesh, wall: WallClock) -> None:
    run_id = await running(mesh)
    wall.offset_s = -300.0
    row = (await mesh.live(run_id))[0]
    beat: dict[str, Any] = {"incarnation": row.incarnation, "seq": 1, "state": "running"}
    progress = {"completions_done": 7}
    await mesh.controller.heartbeat(
        row.id, Heartbeat.model_validate({**beat, "progress": progress})
    )

    async def shown() -> bool:
        return (await mesh.run(run_id)).progress.get("completions_done") == 7

    await mesh.until(shown)
