"""The controller in this process, with a launcher that starts nothing: the test is the workers."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session

from control_plane.broadcast import Broadcaster
from control_plane.controller import Controller
from control_plane.settings import Settings
from control_plane.store import Database, events, exports, ledger, runs, workers
from control_plane.store.tables import Run, Worker
from services.launchers import LaunchSpec, ProcessHandle
from shared.api.events import CheckpointSaved, ExportProgress
from shared.api.exports import ExportRequest
from shared.api.runs import EvaluationRequest
from shared.api.workers import Heartbeat, WorkerLease, WorkerRegistration
from shared.config import resolve_config
from shared.errors import ConflictError, EnvironmentFault, ForbiddenPathError, NotFoundError
from shared.manifest import Manifest, ManifestFile
from shared.states import RunAction, RunState, WorkerState


class RecordingLauncher:
    """Starts nothing; the handles it gives out live until they are killed."""

    def __init__(self) -> None:
        self.specs: list[LaunchSpec] = []
        self.dead: set[ProcessHandle] = set()
        self.refuses = False

    async def launch(self, spec: LaunchSpec) -> ProcessHandle:
        if self.refuses:
            raise EnvironmentFault("no more processes on this machine")
        self.specs.append(spec)
        return ProcessHandle("nowhere", 10_000 + len(self.specs), f"boot/{len(self.specs)}")

    def adopt(self, handle: ProcessHandle) -> bool:
        return self.is_alive(handle)

    def is_alive(self, handle: ProcessHandle) -> bool:
        return handle not in self.dead

    def exit_code(self, handle: ProcessHandle) -> int | None:
        return None

    def terminate(self, handle: ProcessHandle) -> None:
        self.dead.add(handle)

    def kill(self, handle: ProcessHandle) -> None:
        self.dead.add(handle)


class Mesh:
    """A controller and what a test does with it."""

    def __init__(self, controller: Controller, database: Database, settings: Settings) -> None:
        self.controller = controller
        self.database = database
        self.settings = settings

    async def submit(self, **supervision: Any) -> str:
        config = resolve_config(
            {
                "target": {"path": "builtin:tiny"},
                "data": {"prompts": "builtin:tiny"},
                "stages": ["generate", "tokenise"],
                "archive": {"worker": False},
                "supervision": {
                    "heartbeat_s": 0.1,
                    "lease_s": 30,
                    "backoff_s": 0.05,
                    **supervision,
                },
            }
        )
        return await self.controller.submit(config)

    async def run(self, run_id: str) -> Run:
        return await self.database.read(runs.get, run_id)

    async def until(self, condition: Callable[[], Awaitable[Any]]) -> Any:
        async with asyncio.timeout(10):
            while not (value := await condition()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return value

    async def until_state(self, run_id: str, state: RunState) -> Run:
        async def reached() -> Run | None:
            run = await self.run(run_id)
            return run if run.state == state.value else None

        return await self.until(reached)

    async def live(self, run_id: str) -> list[Worker]:
        return await self.database.read(workers.list_for_run, run_id, live_only=True)

    async def register_all(self, run_id: str, num: int = 2) -> list[WorkerLease]:
        """Register what was launched, as its process would."""

        async def launched() -> list[Worker] | None:
            rows = [w for w in await self.live(run_id) if w.pid is not None]
            return rows if len(rows) == num else None

        leases = []
        for row in await self.until(launched):
            registration = WorkerRegistration(
                run_id=run_id,
                role=row.role,
                rank=row.rank,
                incarnation=row.incarnation,
                host="nowhere",
                pid=row.pid,
                pid_birth=row.pid_birth,
                job_id=row.job_id,
            )
            leases.append(await self.controller.register(registration))
        return leases

    async def beat(self, worker_id: str, seq: int, *facts: dict[str, Any]) -> None:
        row = await self.database.read(workers.get, worker_id)
        body = {"incarnation": row.incarnation, "seq": seq, "state": "running"}
        heartbeat = Heartbeat.model_validate({**body, "events": list(facts)})
        await self.controller.heartbeat(worker_id, heartbeat)


@pytest.fixture
def launcher() -> RecordingLauncher:
    return RecordingLauncher()


@asynccontextmanager
async def open_mesh(
    settings: Settings, launcher: RecordingLauncher, **clocks: Callable[[], float]
) -> AsyncIterator[Mesh]:
    """A controller at work, shut down in the end."""
    settings.data.mkdir(exist_ok=True)
    database = await Database.open(settings.folder.database)
    controller = Controller(
        settings=settings,
        database=database,
        launcher=launcher,
        broadcaster=Broadcaster(),
        **clocks,
    )
    await controller.start()
    try:
        yield Mesh(controller, database, settings)
    finally:
        await controller.shutdown()
        await database.close()


@pytest.fixture
async def mesh(tmp_path: Path, launcher: RecordingLauncher) -> AsyncIterator[Mesh]:
    settings = Settings(data=tmp_path / "data", max_active_runs=2, export_roots=(tmp_path,))
    async with open_mesh(settings, launcher) as opened:
        yield opened
    left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("run-")]
    assert left == []


async def test_runs_beyond_the_limit_wait_their_turn(mesh: Mesh) -> None:
    ids = [await mesh.submit() for _ in range(3)]
    for run_id in ids[:2]:
        await mesh.register_all(run_id)
        await mesh.until_state(run_id, RunState.RUNNING)
    assert (await mesh.run(ids[2])).state == RunState.QUEUED
    await mesh.controller.act(ids[0], RunAction.STOP, "now")
    await mesh.until_state(ids[2], RunState.STARTING)


async def test_a_queued_run_is_stopped_at_once_and_never_starts(
    mesh: Mesh, launcher: RecordingLauncher
) -> None:
    for _ in range(2):
        await mesh.register_all(await mesh.submit())
    queued = await mesh.submit()
    assert (await mesh.controller.act(queued, RunAction.STOP)).state == RunState.STOPPED
    assert queued not in {spec.run_id for spec in launcher.specs}


async def test_a_launcher_that_refuses_trips_the_breaker_with_its_message(
    mesh: Mesh, launcher: RecordingLauncher
) -> None:
    launcher.refuses = True
    run_id = await mesh.submit(breaker_restarts=1)
    failed = await mesh.until_state(run_id, RunState.FAILED)
    assert "no more processes on this machine" in str(failed.reason)


async def test_an_alert_reaches_the_webhook(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        received.put_nowait(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as hook:
        port = hook.sockets[0].getsockname()[1]
        monkeypatch.setenv("TEST_ALERTS", f"http://127.0.0.1:{port}/hook")
        run_id = await mesh.submit(webhook_env="TEST_ALERTS")
        leases = await mesh.register_all(run_id)
        await mesh.until_state(run_id, RunState.RUNNING)
        report = {"blocked": True, "reason": "too many truncated", "report": {}}
        await mesh.beat(leases[0].worker_id, 1, {"type": "gate_report", "number": 0, **report})
        async with asyncio.timeout(5):
            alert = json.loads(await received.get())
    assert alert == {
        "kind": "blocked",
        "run_id": run_id,
        "run_name": "run",
        "message": "too many truncated",
    }
    assert (await mesh.run(run_id)).state == RunState.BLOCKED


async def test_a_stall_is_told_once(mesh: Mesh) -> None:
    run_id = await mesh.submit(stall_s=0.5)
    await mesh.register_all(run_id)
    await mesh.until_state(run_id, RunState.RUNNING)

    async def told() -> list[Any]:
        return await mesh.database.read(events.list_last, run_id, ["log"], limit=10)

    await mesh.until(told)
    [warning] = await told()
    assert "no progress for 0.5 s" in warning.data["message"]
    assert (await mesh.run(run_id)).state == RunState.RUNNING


async def test_the_last_figures_come_with_the_news_of_the_end(mesh: Mesh) -> None:
    run_id = await mesh.submit()
    leases = await mesh.register_all(run_id)
    await mesh.until_state(run_id, RunState.RUNNING)

    async def has_stage() -> bool:
        return (await mesh.run(run_id)).stage is not None

    await mesh.until(has_stage)  # the figures are fresh, so the next are not due for a second
    generator = next(lease for lease in leases if lease.worker_id.startswith("generator"))
    row = await mesh.database.read(workers.get, generator.worker_id)
    last = {"completions_done": 7, "completions_total": 9}
    beat = Heartbeat(incarnation=row.incarnation, seq=5, state=WorkerState.RUNNING, progress=last)
    await mesh.controller.heartbeat(generator.worker_id, beat)
    await mesh.controller.act(run_id, RunAction.STOP, "now")
    await mesh.until_state(run_id, RunState.STOPPED)
    told = await mesh.database.read(events.list_last, run_id, ["run"], limit=50)
    [stopped] = [event.data for event in told if event.data["state"] == "stopped"]
    assert stopped["progress"]["completions_done"] == 7
    assert (stopped["stage"], stopped["bottleneck"]) == (None, None)


async def test_destinations_outside_of_the_allowed_roots_are_refused(mesh: Mesh) -> None:
    run_id = await mesh.submit()
    with pytest.raises(ForbiddenPathError):
        await mesh.controller.start_export(run_id, ExportRequest(destination="file:///etc/x"))


async def test_an_evaluation_needs_a_checkpoint(mesh: Mesh) -> None:
    run_id = await mesh.submit()
    with pytest.raises(ConflictError, match="no complete checkpoint"):
        await mesh.controller.start_evaluation(run_id, EvaluationRequest())
    with pytest.raises(NotFoundError):
        await mesh.controller.start_evaluation("nope", EvaluationRequest())


async def test_a_checkpoint_that_was_never_reported_is_found_on_the_disk(mesh: Mesh) -> None:
    others = [await mesh.submit() for _ in range(2)]
    for other in others:
        await mesh.register_all(other)
    run_id = await mesh.submit()
    folder = mesh.settings.folder.run(run_id).checkpoint(40)
    folder.root.mkdir(parents=True)
    (folder.root / "trainer_state.json").write_text('{"next_micro_batch_id": 160, "epoch": 2}')
    folder.complete_marker.write_text('{"files": {}}')
    (mesh.settings.folder.run(run_id).checkpoint(50).root).mkdir()  # not complete
    await mesh.controller.act(others[0], RunAction.STOP, "now")
    await mesh.until_state(run_id, RunState.STARTING)

    async def evaluated() -> str | None:
        try:
            return await mesh.controller.start_evaluation(run_id, EvaluationRequest(checkpoint=40))
        except ConflictError:
            return None

    assert await mesh.until(evaluated)
    with pytest.raises(NotFoundError, match="it has: 40"):
        await mesh.controller.start_evaluation(run_id, EvaluationRequest(checkpoint=50))


async def test_a_run_that_is_not_over_cannot_be_deleted(mesh: Mesh) -> None:
    run_id = await mesh.submit()
    with pytest.raises(ConflictError, match="stop it before"):
        await mesh.controller.delete_run(run_id)


async def test_delete_removes_only_files_that_an_export_holds(mesh: Mesh, tmp_path: Path) -> None:
    run_id = await mesh.submit()
    await mesh.register_all(run_id)
    root = mesh.settings.folder.run(run_id).root
    store = tmp_path / "store"
    names = {"held.txt": b"one", "changed.txt": b"two", "lost.txt": b"six"}
    for folder in (root / "dataset", store / "dataset"):
        folder.mkdir(parents=True)
        for name, content in names.items():
            (folder / name).write_bytes(content)
    (root / "dataset" / "alone.txt").write_bytes(b"only here")
    files = [
        ManifestFile(
            path=f"dataset/{name}",
            num_bytes=3,
            sha256=hashlib.sha256(content).hexdigest(),
            part="dataset",
        )
        for name, content in names.items()
    ]
    manifest = Manifest(
        run_id=run_id,
        run_name="run",
        config_sha256="0" * 64,
        program_version="0",
        created_at=1.0,
        files=files,
    )
    (store / "manifest.json").write_bytes(manifest.to_bytes())
    (root / "dataset" / "changed.txt").write_bytes(b"TWO")
    (store / "dataset" / "lost.txt").unlink()
    export_id = await mesh.controller.start_export(
        run_id, ExportRequest(destination=f"file://{store}")
    )
    done = ExportProgress(
        number=0,
        export_id=export_id,
        state="completed",
        files_total=3,
        files_done=3,
        bytes_total=9,
        bytes_done=9,
        manifest_sha256="0" * 64,
    )
    await mesh.database.write(exports.record_progress, done, now=1.0)
    await mesh.controller.act(run_id, RunAction.STOP, "now")

    async def deleted() -> bool:
        try:
            await mesh.controller.delete_run(run_id, files=True)
        except ConflictError:  # workers are still ending
            return False
        return True

    await mesh.until(deleted)
    left = sorted(p.name for p in (root / "dataset").iterdir())
    assert left == ["alone.txt", "changed.txt", "lost.txt"]
    with pytest.raises(NotFoundError):
        await mesh.run(run_id)


async def test_a_shutdown_pauses_and_refuses_what_would_start_something(
    mesh: Mesh, launcher: RecordingLauncher
) -> None:
    run_id = await mesh.submit()
    await mesh.register_all(run_id)
    await mesh.until_state(run_id, RunState.RUNNING)
    await mesh.controller.shutdown()
    run = await mesh.run(run_id)
    assert (run.state, run.reason) == (RunState.PAUSED, "control plane shut down")
    assert run.resume_on_start
    assert await mesh.live(run_id) == []
    with pytest.raises(ConflictError, match="shutting down"):
        await mesh.controller.act(run_id, RunAction.RESUME)


async def test_a_run_whose_folder_was_removed_is_not_made_again_from_nothing(mesh: Mesh) -> None:
    run_id = await mesh.submit()
    folder = mesh.settings.folder.run(run_id)
    await mesh.register_all(run_id)
    await mesh.until_state(run_id, RunState.RUNNING)
    checkpoint = folder.checkpoint(40)
    checkpoint.root.mkdir(parents=True)
    checkpoint.complete_marker.write_text('{"files": {}}')
    await mesh.controller.act(run_id, RunAction.STOP, "now")
    await mesh.until_state(run_id, RunState.STOPPED)
    await mesh.database.write(_enter_checkpoint, run_id)

    away = folder.root.with_name("away")
    folder.root.rename(away)
    for _ in range(2):  # the record of the failure must not pass for the folder itself
        await mesh.controller.act(run_id, RunAction.RESUME)
        failed = await mesh.until_state(run_id, RunState.FAILED)
        assert failed.reason is not None
        assert failed.reason.startswith("the ledger knows 1 checkpoints, but the run folder")
        assert not folder.root.exists()
    away.rename(folder.root)
    await mesh.controller.act(run_id, RunAction.RESUME)
    await mesh.register_all(run_id)
    await mesh.until_state(run_id, RunState.RUNNING)


def _enter_checkpoint(session: Session, run_id: str) -> None:
    saved = CheckpointSaved(
        number=0, step=40, next_micro_batch_id=1, epoch=0, num_bytes=0, path="checkpoints"
    )
    ledger.add_checkpoint(session, run_id, saved, now=1.0)
