"""The registry and the facts of heartbeats against a real database, without processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.controller import actions, registry
from control_plane.store import (
    Database,
    evaluations,
    events,
    exports,
    ledger,
    runs,
    series,
    workers,
)
from shared.api.exports import ExportRequest
from shared.api.workers import Heartbeat, HeartbeatAnswer, WorkerRegistration
from shared.config import resolve_config
from shared.errors import ConflictError, SupersededError
from shared.states import Role, RunEvent, RunState, WorkerState

NOW = 1_000_000.0


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    opened = await Database.open(tmp_path / "control_plane.sqlite")
    yield opened
    await opened.close()


@pytest.fixture
async def run_id(database: Database) -> str:
    config = resolve_config(preset="demo", overrides={"evaluate.every_checkpoints": 2})
    run = await database.write(
        runs.create,
        run_id="run-1",
        name="demo",
        config=config.model_dump(mode="json"),
        config_sha256="0" * 64,
        progress={},
        now=NOW,
    )
    await database.write(actions.launch, run.id, now=NOW)
    await database.write(runs.transition, run.id, RunEvent.READY, now=NOW)
    return run.id


async def join(database: Database, role: str = "batcher", incarnation: str = "aaaaaaaa") -> str:
    registration = WorkerRegistration(
        run_id="run-1",
        role=Role(role),
        rank=0,
        incarnation=incarnation,
        host="h",
        pid=1,
        pid_birth="boot/1",
    )
    given = await database.write(registry.register, registration, now=NOW)
    return given.worker.id


async def beat(
    database: Database, worker_id: str, *facts: dict[str, Any], seq: int = 1
) -> HeartbeatAnswer:
    body = {"incarnation": "aaaaaaaa", "seq": seq, "state": "running", "events": list(facts)}
    heartbeat = Heartbeat.model_validate(body)
    _, answer, _ = await database.write(registry.heartbeat, worker_id, heartbeat, now=NOW)
    return answer


def fact(number: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"number": number, "type": kind, **fields}


def log_line(number: int, message: str) -> dict[str, Any]:
    return fact(number, "log_line", level="info", message=message, created_at=NOW)


def checkpoint(number: int, step: int) -> dict[str, Any]:
    place = {"next_micro_batch_id": step, "epoch": 0, "num_bytes": 1, "path": f"step_{step}"}
    return fact(number, "checkpoint_saved", step=step, **place)


async def test_facts_that_arrive_again_are_stored_once(database: Database, run_id: str) -> None:
    worker_id = await join(database)
    first = await beat(database, worker_id, log_line(0, "a"), log_line(1, "b"))
    assert first.acked_events == 2
    again = await beat(database, worker_id, log_line(1, "b"), log_line(2, "c"), seq=2)
    assert again.acked_events == 3
    logs = await database.read(events.list_last, run_id, ["log"], limit=10)
    assert [event.data["message"] for event in logs] == ["a", "b", "c"]


async def test_steps_become_series_and_the_runs_loss(database: Database, run_id: str) -> None:
    worker_id = await join(database, "drafter_trainer")
    steps = [
        fact(
            n, "step_taken", step=n + 1, epoch=0, loss=2.0 - n, accuracy=0.1, lr=1e-3, num_tokens=5
        )
        for n in range(2)
    ]
    await beat(database, worker_id, *steps)
    points = await database.read(series.read, run_id, "loss")
    assert [(p.step, p.value) for p in points] == [(1, 2.0), (2, 1.0)]
    assert (await database.read(runs.get, run_id)).loss == 1.0


async def test_every_second_checkpoint_is_evaluated_when_asked_for(
    database: Database, run_id: str
) -> None:
    worker_id = await join(database, "drafter_trainer")
    await beat(database, worker_id, *(checkpoint(n, 10 * n) for n in range(4)))
    found = await database.read(evaluations.list_for_run, run_id)
    assert {(e.checkpoint_step, e.final) for e in found} == {(10, False), (30, False)}


async def test_a_changed_segment_fails_the_run(database: Database, run_id: str) -> None:
    worker_id = await join(database)
    sealed = {"num_samples": 1, "num_tokens": 1, "num_supervised_tokens": 1, "path": "p"}
    await beat(database, worker_id, fact(0, "segment_sealed", index=0, sha256="aa", **sealed))
    await beat(
        database, worker_id, fact(1, "segment_sealed", index=0, sha256="bb", **sealed), seq=2
    )
    run = await database.read(runs.get, run_id)
    assert run.state == RunState.FAILED
    assert "segment 0" in str(run.reason)
    assert len(await database.read(ledger.list_segments, run_id)) == 1


async def test_a_gate_blocks_once_and_not_after_its_override(
    database: Database, run_id: str
) -> None:
    worker_id = await join(database)
    report = {"blocked": True, "reason": "too many", "report": {"window": 256}}
    await beat(database, worker_id, fact(0, "gate_report", **report))
    assert (await database.read(runs.get, run_id)).state == RunState.BLOCKED
    await database.write(actions.resume, run_id, mode="drain", now=NOW)
    answer = await beat(database, worker_id, fact(1, "gate_report", **report), seq=2)
    run = await database.read(runs.get, run_id)
    assert run.state == RunState.STARTING
    assert answer.overrides == ["gates"]


async def test_a_failing_job_worker_fails_its_job_and_not_the_run(
    database: Database, run_id: str
) -> None:
    export = await database.write(
        exports.create, run_id, ExportRequest(), destination="file:///x", now=NOW
    )
    await database.write(
        workers.add_launch,
        run_id=run_id,
        role=Role.ARCHIVER,
        rank=1,
        incarnation="aaaaaaaa",
        job_id=export.id,
        device="cpu",
        restarts=0,
        now=NOW,
        launched=True,
    )
    registration = WorkerRegistration(
        run_id=run_id,
        role=Role.ARCHIVER,
        rank=1,
        incarnation="aaaaaaaa",
        host="h",
        pid=1,
        pid_birth="boot/1",
        job_id=export.id,
    )
    given = await database.write(registry.register, registration, now=NOW)
    assert given.job is not None
    assert given.job["include"] == export.include
    failure = {"slug": "integrity", "message": "bad sum", "retryable": False}
    await beat(database, given.worker.id, fact(0, "worker_failed", **failure))
    failed = await database.read(exports.get, export.id)
    assert (failed.state, failed.problems) == ("failed", ["bad sum"])
    assert (await database.read(runs.get, run_id)).state == RunState.RUNNING


async def test_the_newest_incarnation_holds_the_lease(database: Database, run_id: str) -> None:
    old = await join(database)
    new = await join(database, incarnation="bbbbbbbb")
    assert old != new
    with pytest.raises(SupersededError):
        await beat(database, old)
    with pytest.raises(SupersededError):
        await join(database)


async def test_peers_are_the_others_that_live(database: Database, run_id: str) -> None:
    generator, batcher = await join(database, "generator"), await join(database)
    answer = await beat(database, batcher)
    assert [peer.worker_id for peer in answer.peers] == [generator]
    await database.write(registry.leave, generator, "drained", now=NOW)
    answer = await beat(database, batcher, seq=2)
    assert answer.peers == []


async def test_an_ended_run_takes_no_workers(database: Database, run_id: str) -> None:
    await database.write(actions.stop, run_id, mode="drain", now=NOW)
    await database.write(runs.transition, run_id, RunEvent.DRAINED, now=NOW)
    with pytest.raises(ConflictError, match="stopped and takes no workers"):
        await join(database)


async def test_leaving_a_process_we_launched_waits_for_its_end(
    database: Database, run_id: str
) -> None:
    row = await database.write(
        workers.add_launch,
        run_id=run_id,
        role=Role.BATCHER,
        rank=0,
        incarnation="aaaaaaaa",
        job_id=None,
        device="cpu",
        restarts=0,
        now=NOW,
        launched=True,
    )
    await join(database)
    left = await database.write(registry.leave, row.id, "drained", now=NOW)
    assert left.ended_at is None
    assert (left.state, left.end_reason) == (WorkerState.EXITED, "drained")
