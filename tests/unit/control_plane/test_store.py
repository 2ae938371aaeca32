"""The store against a real SQLite file: states, ledger, series, events, jobs, keys."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.store import (
    Database,
    evaluations,
    events,
    exports,
    idempotency,
    ledger,
    runs,
    series,
    workers,
)
from control_plane.store.tables import Event, Run
from shared.api.events import CheckpointSaved, ExportProgress, SegmentSealed
from shared.api.exports import ExportRequest
from shared.api.workers import Heartbeat, WorkerRegistration
from shared.errors import (
    ConflictError,
    DatabaseFault,
    IdempotencyError,
    IllegalTransition,
    IntegrityError,
    NotFoundError,
    SupersededError,
)
from shared.states import Role, RunEvent, RunState, WorkerState


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(tmp_path / "control_plane.sqlite")
    yield opened
    await opened.close()


async def make_run(database: Database, run_id: str = "r1", now: float = 10.0) -> Run:
    return await database.write(
        runs.create,
        run_id=run_id,
        name="demo",
        config={"name": "demo"},
        config_sha256="0" * 64,
        progress={},
        now=now,
    )


def registration(**changes: Any) -> WorkerRegistration:
    given: dict[str, Any] = {
        "run_id": "r1",
        "role": Role.BATCHER,
        "rank": 0,
        "incarnation": "aaaaaaaa",
        "host": "here",
        "pid": 7,
        "pid_birth": "boot/1",
    }
    return WorkerRegistration(**{**given, **changes})


async def test_transition_goes_along_the_state_machine_and_appends_events(
    database: Database,
) -> None:
    seen: list[Event] = []
    database.on_events = seen.extend
    await make_run(database)
    await database.write(runs.transition, "r1", RunEvent.LAUNCH, now=11.0)
    run = await database.write(runs.transition, "r1", RunEvent.READY, now=12.0)
    assert (run.state, run.started_at, run.version) == ("running", 11.0, 2)
    with pytest.raises(IllegalTransition, match="running"):
        await database.write(runs.transition, "r1", RunEvent.DRAINED, now=13.0)
    with pytest.raises(ConflictError, match="no longer queued"):
        await database.write(
            runs.transition, "r1", RunEvent.FAIL, now=13.0, expected_state=RunState.QUEUED
        )
    failed = await database.write(
        runs.transition, "r1", RunEvent.FAIL, now=14.0, reason="the disk is gone"
    )
    assert (failed.state, failed.reason, failed.ended_at) == ("failed", "the disk is gone", 14.0)
    stored = await database.read(events.list_after, "r1", 0)
    states = [event.data["state"] for event in stored]
    assert states == ["queued", "starting", "running", "failed"]
    assert [event.id for event in seen] == [event.id for event in stored]
    resumed = await database.write(runs.transition, "r1", RunEvent.RESUME, now=15.0)
    assert (resumed.state, resumed.ended_at, resumed.reason) == ("queued", None, None)


async def test_a_failed_write_leaves_nothing_behind(database: Database) -> None:
    seen: list[Event] = []
    database.on_events = seen.extend
    await make_run(database)

    def half(session: Any) -> None:
        runs.transition(session, "r1", RunEvent.LAUNCH, now=11.0)
        raise ConflictError("on purpose")

    with pytest.raises(ConflictError):
        await database.write(half)
    assert (await database.read(runs.get, "r1")).state == "queued"
    assert len(await database.read(events.list_after, "r1", 0)) == len(seen) == 1


async def test_paging_of_runs_is_newest_first_and_complete(database: Database) -> None:
    for number in range(5):
        await make_run(database, f"r{number}", now=10.0 + number // 2)
    page = await database.read(runs.list_page, limit=3)
    last = (page[-1].created_at, page[-1].id)
    rest = await database.read(runs.list_page, limit=3, before=last)
    assert [run.id for run in page + rest] == ["r4", "r3", "r2", "r1", "r0"]


async def test_readers_cannot_write(database: Database) -> None:
    await make_run(database)
    with pytest.raises(DatabaseFault, match="readonly"):
        await database.read(runs.transition, "r1", RunEvent.LAUNCH, now=1.0)


async def test_newer_incarnation_takes_the_slot(database: Database) -> None:
    await make_run(database)
    first = await database.write(workers.register, registration(), now=1.0)
    again = await database.write(workers.register, registration(), now=2.0)
    assert again.id == first.id
    second = await database.write(workers.register, registration(incarnation="bbbbbbbb"), now=3.0)
    beat = Heartbeat(incarnation="aaaaaaaa", seq=0, state=WorkerState.RUNNING)
    with pytest.raises(SupersededError):
        await database.write(workers.heartbeat, first.id, beat, now=4.0)
    with pytest.raises(SupersededError):
        await database.write(workers.register, registration(), now=4.0)
    live = await database.read(workers.list_for_run, "r1", live_only=True)
    assert [worker.id for worker in live] == [second.id]
    with pytest.raises(NotFoundError, match="no run"):
        await database.write(workers.register, registration(run_id="nope"), now=4.0)


async def test_an_old_heartbeat_renews_the_lease_but_changes_no_figures(
    database: Database,
) -> None:
    await make_run(database)
    worker = await database.write(workers.register, registration(), now=1.0)
    for seq, step, now in ((5, 50, 2.0), (4, 40, 3.0)):
        beat = Heartbeat(
            incarnation="aaaaaaaa", seq=seq, state=WorkerState.RUNNING, progress={"step": step}
        )
        await database.write(workers.heartbeat, worker.id, beat, now=now)
    stored = await database.read(workers.get, worker.id)
    assert (stored.heartbeat_at, stored.progress) == (3.0, {"step": 50})


async def test_ledger_takes_each_fact_once(database: Database) -> None:
    await make_run(database)
    sealed = SegmentSealed(
        number=0,
        index=0,
        num_samples=2,
        num_tokens=20,
        num_supervised_tokens=9,
        sha256="a" * 64,
        path="dataset/shard_00000.arrow",
    )
    assert await database.write(ledger.add_segment, "r1", sealed, now=1.0) is True
    assert await database.write(ledger.add_segment, "r1", sealed, now=2.0) is False
    other = sealed.model_copy(update={"sha256": "b" * 64})
    with pytest.raises(IntegrityError, match="segment 0"):
        await database.write(ledger.add_segment, "r1", other, now=3.0)
    saved = CheckpointSaved(
        number=1,
        step=10,
        next_micro_batch_id=40,
        epoch=0,
        num_bytes=5,
        path="checkpoints/step_00000010",
    )
    assert await database.write(ledger.add_checkpoint, "r1", saved, now=1.0) is True
    assert await database.write(ledger.add_checkpoint, "r1", saved, now=2.0) is False
    await database.write(ledger.set_acceptance_length, "r1", 10, 3.5, now=3.0)
    newest = await database.read(ledger.newest_checkpoint, "r1")
    assert newest is not None and newest.acceptance_length == 3.5
    await database.write(ledger.remove_checkpoint, "r1", 10, now=4.0)
    assert await database.read(ledger.list_checkpoints, "r1") == []
    assert await database.write(ledger.add_checkpoint, "r1", saved, now=5.0) is True


async def test_series_replace_replayed_steps_and_keep_peaks(database: Database) -> None:
    await make_run(database)
    values = [series.Sample("loss", step, float(step), 1.0) for step in range(1000)]
    values[377] = series.Sample("loss", 377, 377.0, 99.0)
    values.append(series.Sample("loss", 1000, 1000.0, float("nan")))
    assert await database.write(series.add, "r1", values) == 1000
    replay = [series.Sample("loss", 500, 501.0, -7.0)]
    await database.write(series.add, "r1", replay)
    points = await database.read(series.read, "r1", "loss", points=50)
    assert len(points) <= 50
    found = {point.step: point.value for point in points}
    assert (found[377], found[500]) == (99.0, -7.0)
    assert [point.step for point in points] == sorted(found)
    assert {0, 999} <= set(found)
    assert await database.write(series.truncate, "r1", ["loss"], 899) == 100
    tail = await database.read(series.read, "r1", "loss", since=898)
    assert [point.step for point in tail] == [898, 899]
    assert await database.read(series.names, "r1") == ["loss"]


async def test_export_ends_once_and_can_be_checked_again(database: Database) -> None:
    await make_run(database)
    export = await database.write(
        exports.create, "r1", ExportRequest(), destination="file:///x", now=1.0
    )
    with pytest.raises(ConflictError, match="queued"):
        await database.write(exports.request_verify, export.id, now=2.0)
    done = ExportProgress(
        number=0,
        export_id=export.id,
        state="completed",
        files_total=1,
        files_done=1,
        bytes_total=4,
        bytes_done=4,
        manifest_sha256="c" * 64,
    )
    await database.write(exports.record_progress, done, now=3.0)
    late = done.model_copy(update={"state": "running", "files_done": 0})
    stored = await database.write(exports.record_progress, late, now=4.0)
    assert (stored.state, stored.files_done, stored.ended_at) == ("completed", 1, 3.0)
    again = await database.write(exports.request_verify, export.id, now=5.0)
    assert (again.state, again.verify_only, again.ended_at) == ("queued", True, None)


async def test_evaluation_result_is_stored_once(database: Database) -> None:
    await make_run(database)
    made = await database.write(
        evaluations.create, "r1", checkpoint_step=None, num_prompts=4, now=1.0
    )
    await database.write(evaluations.start, made.id, checkpoint_step=12, now=2.0)
    await database.write(evaluations.complete, made.id, {"acceptance_length": 3.0}, now=3.0)
    await database.write(evaluations.fail, made.id, "too late", now=4.0)
    stored = await database.read(evaluations.get, made.id)
    assert (stored.state, stored.checkpoint_step) == ("completed", 12)
    assert stored.result == {"acceptance_length": 3.0}


async def test_idempotency_key_is_claimed_once(database: Database) -> None:
    assert await database.write(idempotency.begin, "k", "f1", now=1.0) is None
    waiting = await database.write(idempotency.begin, "k", "f1", now=1.0)
    assert waiting is not None and waiting.status is None
    with pytest.raises(IdempotencyError):
        await database.write(idempotency.begin, "k", "f2", now=1.0)
    await database.write(idempotency.finish, "k", status=202, headers={}, body=b"{}")
    stored = await database.write(idempotency.begin, "k", "f1", now=2.0)
    assert stored is not None and (stored.status, stored.body) == (202, b"{}")
    await database.write(idempotency.prune, now=2.0 + idempotency.KEEP_S)
    assert await database.write(idempotency.begin, "k", "f2", now=1.0) is None


async def test_deleting_a_run_takes_its_rows_along(database: Database, tmp_path: Path) -> None:
    await make_run(database)
    await database.write(workers.register, registration(), now=1.0)
    await database.write(series.add, "r1", [series.Sample("loss", 1, 1.0, 1.0)])
    with pytest.raises(ConflictError, match="queued"):
        await database.write(runs.delete, "r1")
    await database.write(runs.transition, "r1", RunEvent.STOP, now=2.0)
    await database.write(runs.delete, "r1")
    connection = sqlite3.connect(tmp_path / "control_plane.sqlite")
    for table in ("runs", "workers", "points", "events"):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    connection.close()


async def test_events_are_pruned_from_the_old_end(database: Database) -> None:
    await make_run(database)
    for number in range(10):
        await database.write(events.append, "r1", "log", {"number": number}, now=1.0)
    assert await database.write(events.prune, "r1", keep=4) == 7
    left = await database.read(events.list_after, "r1", 0)
    assert [event.data["number"] for event in left] == [6, 7, 8, 9]
    assert await database.read(events.last_id, "r1") == left[-1].id
