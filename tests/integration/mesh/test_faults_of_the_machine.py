"""No open file, no place on the disk, a database that takes nothing: runs wait, and go on."""

from __future__ import annotations

import contextlib
import errno
import time
from pathlib import Path

import pytest

from control_plane.controller import run_task, supervisor
from control_plane.settings import Settings
from control_plane.store import workers
from services.launchers import LaunchSpec, ProcessHandle
from shared.errors import (
    DatabaseFault,
    EnvironmentFault,
    ExhaustedFault,
    ReadOnlyError,
    StorageFault,
)
from shared.states import RunState
from tests.helpers.small_disks import fill, mounted_small_disk
from tests.integration.mesh.test_controller import (
    Mesh,
    RecordingLauncher,
    launcher,
    mesh,
    open_mesh,
)

__all__ = ["launcher", "mesh"]


@pytest.mark.parametrize("fault", [OSError(errno.EMFILE, "too many"), DatabaseFault("gone")])
async def test_a_fault_in_a_look_holds_the_run_up_and_does_not_fail_it(
    mesh: Mesh,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
) -> None:
    num_failed = 0
    whole = run_task.take_snapshot

    def failing(*args: object) -> object:
        nonlocal num_failed
        num_failed += 1
        if num_failed < 4:
            raise fault
        return whole(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(run_task, "take_snapshot", failing)
    monkeypatch.setattr(supervisor, "remove_stale_segments", lambda *_: [])
    run_id = await mesh.submit()
    await mesh.register_all(run_id)
    await mesh.until_state(run_id, RunState.RUNNING)
    assert num_failed > 3


async def test_a_launch_that_the_machine_has_no_room_for_counts_as_no_failure(
    mesh: Mesh,
    launcher: RecordingLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = 0
    launch = launcher.launch

    async def hardly(spec: LaunchSpec) -> ProcessHandle:
        nonlocal refused
        refused += 1
        if refused < 4:
            raise ExhaustedFault("too many open files")
        return await launch(spec)

    monkeypatch.setattr(launcher, "launch", hardly)
    run_id = await mesh.submit(breaker_restarts=1)
    await mesh.register_all(run_id)
    await mesh.until_state(run_id, RunState.RUNNING)
    assert len(await mesh.database.read(workers.list_for_run, run_id)) == 2


@pytest.mark.parametrize("kind", [StorageFault, ReadOnlyError])
async def test_a_disk_that_refuses_pauses_the_run_with_its_reason(
    mesh: Mesh,
    kind: type[StorageFault],
) -> None:
    run_id = await mesh.submit()
    leases = await mesh.register_all(run_id)
    await mesh.until_state(run_id, RunState.RUNNING)
    fact = {"type": "worker_failed", "slug": kind.slug, "retryable": kind.retryable}
    message = "cannot use shard_000001.arrow: the file system is read-only"
    await mesh.beat(leases[0].worker_id, 1, {**fact, "number": 0, "message": message})
    paused = await mesh.until_state(run_id, RunState.PAUSED)
    assert message in str(paused.reason)


async def test_a_run_without_a_place_is_not_queued(mesh: Mesh, tmp_path: Path) -> None:
    folder = mesh.settings.folder.run("x").root.parent
    folder.write_text("in the way")
    with pytest.raises(StorageFault, match=str(folder)):
        await mesh.submit()
    folder.unlink()
    await mesh.submit()


async def test_a_full_disk_is_told_and_makes_nobody_silent(
    tmp_path: Path,
    launcher: RecordingLauncher,
) -> None:
    with mounted_small_disk(tmp_path / "data", 3 * 2**20) as disk:
        async with open_mesh(Settings(disk), launcher) as full:
            run_id = await full.submit(lease_s=1.0, heartbeat_s=0.1)
            ids = [lease.worker_id for lease in await full.register_all(run_id)]
            await full.until_state(run_id, RunState.RUNNING)
            ballast = fill(disk, leave_bytes=0)
            seq = 0
            full_since_s: float | None = None

            async def beat_on() -> bool:
                """Beats with long facts: until none can be stored, and for longer than a lease."""
                nonlocal seq, full_since_s
                seq += 1
                line = {"type": "log_line", "number": seq, "level": "info", "message": "x" * 4000}
                for worker_id in ids:
                    with contextlib.suppress(EnvironmentFault):
                        await full.beat(worker_id, seq, {**line, "created_at": 1.0})
                if full_since_s is None and full.database.write_problem:
                    full_since_s = time.monotonic()
                return full_since_s is not None and time.monotonic() - full_since_s > 1.3

            await full.until(beat_on)
            with pytest.raises(DatabaseFault, match=r"cannot be written.*disk is full.*free some"):
                await full.database.check()
            ballast.unlink()
            await full.database.check()
            assert full.database.write_problem is None
            shown = await full.run(run_id)

            async def looked_at() -> bool:
                return (await full.run(run_id)).version > shown.version

            await full.until(looked_at)
            assert [row.id for row in await full.live(run_id)] == ids
