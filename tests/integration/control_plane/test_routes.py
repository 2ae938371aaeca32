"""The calls of the interface, one after the other, on the real app."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from control_plane.store import ledger, runs, series
from control_plane.store.series import Sample
from control_plane.version import program_version
from shared.api.events import CheckpointSaved
from shared.errors import ConflictError
from shared.states import RunEvent
from tests.helpers.run_folders import make_checkpoint
from tests.integration.control_plane.conftest import Plane, PlaneFactory
from tests.integration.control_plane.test_http import assert_problem


def registration(run_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "role": "batcher",
        "rank": 0,
        "incarnation": "0123456789",
        "host": "here",
        "pid": 4_000_000,
        "pid_birth": "boot/1",
        **changes,
    }


async def active_run(plane: Plane) -> dict[str, Any]:
    """A run that takes workers; what the launcher starts of it does nothing."""
    run = await plane.start_run()
    await plane.mesh.database.write(runs.transition, run["id"], RunEvent.LAUNCH, now=1.0)
    return run


async def test_a_run_is_started_looked_at_stopped_and_forgotten(plane: Plane) -> None:
    body = {"preset": "demo", "overrides": {"data.num_prompts": 12, "trainer.lr": 1e-3}}
    started = await plane.client.post("/v1/runs", json=body)
    assert started.status_code == 202
    run = started.json()
    url = started.headers["location"]
    assert url == f"/v1/runs/{run['id']}"
    assert (run["state"], run["progress"]["completions_total"]) == ("queued", 11)
    assert (await plane.client.get(url)).json() == run
    assert_problem(await plane.client.post(f"{url}/pause"), 409, "illegal-transition")
    assert_problem(await plane.client.delete(url), 409, "conflict")
    stopped = await plane.client.post(f"{url}/stop", json={"mode": "drain"})
    assert (stopped.status_code, stopped.json()["state"]) == (202, "stopped")
    again = await plane.client.post(f"{url}/stop")
    assert (again.status_code, again.json()["state"]) == (200, "stopped")
    resumed = await plane.client.post(f"{url}/resume")
    assert (resumed.status_code, resumed.json()["state"]) == (202, "queued")
    await plane.client.post(f"{url}/stop")
    assert (await plane.client.delete(url)).status_code == 202
    assert_problem(await plane.client.get(url), 404, "not-found")


async def test_a_dry_run_starts_nothing(plane: Plane) -> None:
    answer = await plane.client.post("/v1/runs?dry_run=true", json={"preset": "demo"})
    assert answer.status_code == 200
    view = answer.json()
    assert view["config"]["target"]["path"] == "builtin:tiny"
    assert view["forecast"]["num_samples"] > 0 and len(view["config_sha256"]) == 64
    assert (await plane.client.get("/v1/runs")).json()["items"] == []


async def test_files_a_run_names_are_checked_before_it_is_queued(
    plane: Plane, tmp_path: Path
) -> None:
    broken = tmp_path / "prompts.jsonl"
    broken.write_text('{"prompt": "one"}\n{oops\n')
    overrides = {"data.prompts": str(broken), "target.path": str(tmp_path / "nowhere")}
    answer = await plane.client.post("/v1/runs", json={"preset": "demo", "overrides": overrides})
    problem = assert_problem(answer, 422, "invalid-configuration")
    assert {error["field"] for error in problem["errors"]} == {"target.path", "data.prompts"}
    overrides = {"data.prompts": str(broken)}
    answer = await plane.client.post("/v1/runs", json={"preset": "demo", "overrides": overrides})
    assert "line 2" in assert_problem(answer, 422, "invalid-data")["detail"]
    assert (await plane.client.get("/v1/runs")).json()["items"] == []


async def test_a_plan_counts_with_what_it_is_given(plane: Plane) -> None:
    body = {
        "preset": "demo",
        "gpus": ["h200"],
        "num_prompts": 1000,
        "usd_per_hour": {"h200": 3600.0},
    }
    (first,) = (await plane.client.post("/v1/plan", json=body)).json()["forecasts"]
    body["usd_per_hour"] = {"h200": 7200.0}
    (dearer,) = (await plane.client.post("/v1/plan", json=body)).json()["forecasts"]
    assert first["num_samples"] == 1000
    assert dearer["cost_usd"] == pytest.approx(2 * first["cost_usd"])
    unknown = await plane.client.post("/v1/plan", json={**body, "gpus": ["h2000"]})
    assert_problem(unknown, 422, "invalid-configuration")


async def test_workers_register_beat_and_leave(plane: Plane) -> None:
    queued = registration((await plane.start_run())["id"])
    assert_problem(await plane.client.post("/v1/workers", json=queued), 409, "conflict")
    run = await active_run(plane)
    answer = await plane.client.post("/v1/workers", json=registration(run["id"]))
    assert answer.status_code == 201, answer.text
    lease = answer.json()
    url = f"/v1/workers/{lease['worker_id']}"
    event = {
        "type": "step_taken",
        "number": 0,
        "step": 1,
        "epoch": 0,
        "loss": 2.5,
        "lr": 1e-3,
        "num_tokens": 10,
    }
    beat = {"incarnation": "0123456789", "seq": 0, "state": "running", "events": [event]}
    for _ in range(2):
        answer = await plane.client.put(f"{url}/heartbeat", json=beat)
        assert (answer.status_code, answer.json()["acked_events"]) == (200, 1)
    metrics = (await plane.client.get(f"/v1/runs/{run['id']}/metrics?names=loss")).json()
    assert [point["value"] for point in metrics["items"][0]["points"]] == [2.5]
    shown = (await plane.client.get("/v1/workers")).json()["items"]
    states = {worker["id"]: worker["state"] for worker in shown}
    assert states[lease["worker_id"]] == "running"
    newer = registration(run["id"], incarnation="abcdefghij")
    assert (await plane.client.post("/v1/workers", json=newer)).status_code == 201
    old = await plane.client.put(f"{url}/heartbeat", json=beat)
    assert_problem(old, 409, "superseded-worker")
    unknown = await plane.client.put("/v1/workers/none/heartbeat", json=beat)
    assert_problem(unknown, 404, "not-found")
    both = (await plane.client.get(f"/v1/workers?run_id={run['id']}")).json()["items"]
    slots = (await plane.client.get(f"/v1/runs/{run['id']}/workers")).json()["items"]
    assert len([w for w in both if w["role"] == "batcher"]) > 1
    (batcher,) = [w["id"] for w in slots if w["role"] == "batcher"]
    assert batcher != lease["worker_id"]
    assert_problem(await plane.client.get("/v1/runs/none/workers"), 404, "not-found")
    live = (await plane.client.get(f"/v1/workers?live=true&run_id={run['id']}")).json()["items"]
    (newest,) = [worker["id"] for worker in live if worker["role"] == "batcher"]
    gone = await plane.client.delete(f"/v1/workers/{newest}?reason=drained")
    assert (gone.status_code, gone.content) == (204, b"")


async def test_series_come_down_sampled(plane: Plane) -> None:
    run = await plane.start_run()
    values = [Sample("loss", step, float(step), 1.0) for step in range(3000)]
    values += [Sample("accuracy", 5, 5.0, 0.5)]
    await plane.mesh.database.write(series.add, run["id"], values)
    url = f"/v1/runs/{run['id']}/metrics"
    view = (await plane.client.get(url, params={"points": 100})).json()
    assert view["names"] == ["accuracy", "loss"]
    lengths = {item["name"]: len(item["points"]) for item in view["items"]}
    assert lengths["accuracy"] == 1 and 50 < lengths["loss"] <= 100
    view = (await plane.client.get(url, params={"names": "loss,none", "since": 2998})).json()
    assert [point["step"] for point in view["items"][0]["points"]] == [2998, 2999]
    assert_problem(await plane.client.get(url, params={"points": 1}), 422, "invalid-request")


async def test_logs_show_the_end_of_the_right_files_only(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", "very-secret-value")
    run = await plane.start_run()
    folder = tmp_path / "data" / "runs" / run["id"] / "logs"
    folder.mkdir(parents=True)
    (folder / "batcher-0.log").write_text(
        "2026-01-01T00:00:01.000Z INFO batcher: first\n"
        "2026-01-01T00:00:03.000Z ERROR batcher: third very-secret-value\n"
        "Traceback (most recent call last):\n"
    )
    (folder / "generator-1.log").write_bytes(
        b"2026-01-01T00:00:02.000Z WARNING generator: second \xff\n"
    )
    secret = tmp_path / "secret.txt"
    secret.write_text("2026-01-01T00:00:02.000Z ERROR nobody may read this\n")
    (folder / "archiver-0.log").symlink_to(secret)
    (folder / "notes.log").write_text("2026-01-01T00:00:02.000Z ERROR not a worker\n")
    url = f"/v1/runs/{run['id']}/logs"

    async def lines(**params: Any) -> list[str]:
        answer = await plane.client.get(url, params=params)
        assert answer.status_code == 200
        return [item["line"] for item in answer.json()["items"]]

    everything = await lines()
    assert [line.split()[-1] for line in everything] == ["first", "\ufffd", "[redacted]", "last):"]
    assert await lines(tail=1) == everything[-1:]
    assert await lines(role="generator") == await lines(rank=1) == everything[1:2]
    assert await lines(level="warning") == everything[1:]
    assert await lines(role="evaluator") == []
    odd = await plane.client.get(url, params={"role": "../batcher"})
    assert_problem(odd, 422, "invalid-request")


async def test_report_checkpoints_and_evaluations(plane: Plane) -> None:
    run = await plane.start_run()
    url = f"/v1/runs/{run['id']}"
    assert (await plane.client.get(f"{url}/report")).json()["report"] is None
    assert_problem(await plane.client.post(f"{url}/evaluations"), 409, "conflict")
    for step in (10, 20):
        # On the disk too, since a starting run compares its ledger with its folder.
        path = make_checkpoint(plane.mesh.settings.folder.run(run["id"]), step)
        saved = CheckpointSaved(
            number=0,
            step=step,
            next_micro_batch_id=4 * step,
            epoch=0,
            num_bytes=7,
            path=str(path),
        )
        await plane.mesh.database.write(ledger.add_checkpoint, run["id"], saved, now=1.0)
    first = (await plane.client.get(f"{url}/checkpoints?limit=1")).json()
    second = (
        await plane.client.get(
            f"{url}/checkpoints", params={"limit": 1, "cursor": first["next_cursor"]}
        )
    ).json()
    assert [c["step"] for c in first["items"] + second["items"]] == [10, 20]
    assert second["next_cursor"] is None
    absent = await plane.client.post(f"{url}/evaluations", json={"checkpoint": 11})
    assert "10, 20" in assert_problem(absent, 404, "not-found")["detail"]
    made = await plane.client.post(f"{url}/evaluations", json={"checkpoint": 10})
    assert (made.status_code, made.json()["checkpoint_step"]) == (202, 10)
    (listed,) = (await plane.client.get(f"{url}/evaluations")).json()["items"]
    assert listed["id"] == made.json()["id"]


async def test_backups_are_whole_databases(plane: Plane) -> None:
    run = await plane.start_run()
    answer = await plane.client.post("/v1/backups")
    assert answer.status_code == 202
    connection = sqlite3.connect(answer.json()["path"])
    assert connection.execute("SELECT id FROM runs").fetchone() == (run["id"],)
    connection.close()


async def test_metrics_have_the_documented_names(plane: Plane) -> None:
    run = await active_run(plane)
    generator = registration(run["id"], role="generator")
    lease = (await plane.client.post("/v1/workers", json=generator)).json()
    beat = {
        "incarnation": "0123456789",
        "seq": 0,
        "state": "running",
        "metrics": {"tokens_total": 42.0},
    }
    await plane.client.put(f"/v1/workers/{lease['worker_id']}/heartbeat", json=beat)

    def running(session: Any) -> None:
        queue = {"name": "batches", "depth": 3, "capacity": 16, "bytes": 5, "capacity_bytes": 9}
        figures = {"loss": 1.5, "accuracy": 0.5, "acceptance_length": 2.5, "queues": [queue]}
        runs.update(session, run["id"], now=1.0, **figures)

    await plane.mesh.database.write(running)
    text = (await plane.client.get("/metrics")).text
    found: dict[str, dict[str, str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, dict(sample.labels))
    for name, labels in {
        "dflash_tokens_total": {"stage": "generated"},
        "dflash_queue_depth": {"queue": "batches"},
        "dflash_queue_capacity": {"queue": "batches"},
        "dflash_queue_bytes": {"queue": "batches"},
        "dflash_stage_duration_seconds": {"stage": "generator"},
        "dflash_worker_up": {"role": "generator", "rank": "0"},
        "dflash_worker_restarts_total": {"role": "generator"},
        "dflash_train_step": {},
        "dflash_train_loss": {},
        "dflash_train_accuracy": {},
        "dflash_acceptance_length": {},
        "dflash_build_info": {"version": program_version()},
    }.items():
        assert labels.items() <= found[name].items(), (name, found)
    assert f'dflash_tokens_total{{run="{run["id"]}",stage="generated"}} 42.0' in text
    assert "# TYPE dflash_archive_bytes_total counter" in text


async def test_the_documents_need_nothing_from_elsewhere(plane: Plane) -> None:
    document = (await plane.client.get("/openapi.json")).json()
    page = await plane.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text and "https://" not in page.text
    for path, methods in document["paths"].items():
        assert path in page.text
        for operation in methods.values():
            assert operation["summary"]
            problem_types = {
                kind
                for status, answer in operation["responses"].items()
                if int(status) >= 400
                for kind in answer["content"]
            }
            assert problem_types == {"application/problem+json"}


async def test_a_data_folder_takes_one_control_plane(make_plane: PlaneFactory) -> None:
    async with make_plane():
        with pytest.raises(ConflictError, match="another control plane"):
            async with make_plane():
                pass


async def test_many_calls_at_once_are_all_answered(plane: Plane) -> None:
    run = await active_run(plane)
    lease = await plane.client.post("/v1/workers", json=registration(run["id"]))
    worker_id = lease.json()["worker_id"]
    answers = await asyncio.gather(
        *(
            plane.client.put(
                f"/v1/workers/{worker_id}/heartbeat",
                json={"incarnation": "0123456789", "seq": seq, "state": "running"},
            )
            for seq in range(100)
        )
    )
    assert {answer.status_code for answer in answers} == {200}


async def test_what_the_machine_refuses_is_a_problem_with_its_place(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await plane.start_run()
    folder = tmp_path / "data" / "runs" / run["id"] / "logs"
    with monkeypatch.context() as patched:
        refused = PermissionError(errno.EACCES, "Permission denied")
        patched.setattr(Path, "is_dir", Mock(side_effect=refused))
        answer = await plane.client.get(f"/v1/runs/{run['id']}/logs")
    assert answer.status_code == 503
    assert str(folder) in answer.json()["detail"]


async def test_a_database_that_takes_no_writes_shows_everywhere(plane: Plane) -> None:
    run = await plane.start_run()
    plane.mesh.database.write_problem = "the database x cannot be written: disk full"
    for url in (f"/v1/runs/{run['id']}", "/v1/runs"):
        view = (await plane.client.get(url)).json()
        assert "disk full" in view.get("items", [view])[0]["reason"]
    ready = await plane.client.get("/readyz")  # tries a write, which succeeds
    assert ready.status_code == 200
    assert (await plane.client.get(f"/v1/runs/{run['id']}")).json()["reason"] is None


async def test_more_runs_than_may_wait_are_refused(make_plane: PlaneFactory) -> None:
    async with make_plane(max_queued_runs=1) as full:
        await full.start_run()
        body = {"preset": "demo", "overrides": {"data.num_prompts": 12}}
        answer = await full.client.post("/v1/runs", json=body)
        assert answer.status_code == 409
        assert "stop some" in answer.json()["detail"]
        folders = list((full.mesh.settings.data / "runs").iterdir())
        assert len(folders) == 1
