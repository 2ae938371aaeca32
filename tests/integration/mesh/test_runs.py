"""Runs over real workers: pause, block, stop, finish, two at once, the queue."""

from __future__ import annotations

import json
import signal
import stat
import time

import pytest

from tests.integration.mesh.conftest import ControlPlane
from tests.integration.mesh.test_supervision import is_running

TRAINING = {"stages": ["generate", "tokenise", "train", "evaluate"]}


def test_pause_holds_the_same_processes_and_resume_goes_on(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run()
    before = shared_plane.workers(run_id)
    assert shared_plane.post(f"/v1/runs/{run_id}/pause")["state"] == "paused"
    shared_plane.wait(
        lambda: {w["state"] for w in shared_plane.workers(run_id).values()} == {"paused"},
        "every worker to hold",
    )
    held = shared_plane.ticks(run_id, "generator")
    shared_plane.wait(
        lambda: shared_plane.workers(run_id)["generator"]["heartbeat_age_s"] < 0.1,
        "another heartbeat",
    )
    assert shared_plane.ticks(run_id, "generator") == held
    shared_plane.post(f"/v1/runs/{run_id}/resume")
    shared_plane.wait_for_state(run_id, "running")
    shared_plane.wait(lambda: shared_plane.ticks(run_id, "generator") > held, "more ticks")
    after = shared_plane.workers(run_id)
    assert {w["id"] for w in after.values()} == {w["id"] for w in before.values()}


def test_a_gate_blocks_and_a_person_goes_past_it(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run()
    shared_plane.tell(run_id, "batcher", "block")
    blocked = shared_plane.wait_for_state(run_id, "blocked")
    assert blocked["reason"] == "truncated: 80 % of 256"
    assert shared_plane.get(f"/v1/runs/{run_id}/report")["report"]["window"] == 256
    shared_plane.post(f"/v1/runs/{run_id}/resume")
    shared_plane.wait_for_state(run_id, "running")
    ticks = shared_plane.ticks(run_id, "batcher")
    shared_plane.wait(lambda: shared_plane.ticks(run_id, "batcher") > ticks, "more work")
    assert shared_plane.run(run_id)["state"] == "running"
    record = json.loads((shared_plane.folder(run_id) / "run.json").read_text())
    assert record["overrides"] == ["gates"]
    assert record["state"] == "running"


def test_a_full_disk_pauses_the_run_and_resume_starts_the_worker_again(
    shared_plane: ControlPlane,
) -> None:
    run_id = shared_plane.start_run()
    shared_plane.tell(run_id, "batcher", "disk-full")
    paused = shared_plane.wait_for_state(run_id, "paused")
    assert paused["reason"] == "batcher 0: no space left for shard 7"
    shared_plane.tell(run_id, "batcher", None)
    shared_plane.post(f"/v1/runs/{run_id}/resume")
    shared_plane.wait_for_state(run_id, "running")


def test_stop_drains_in_order_and_resume_starts_again(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run()
    shared_plane.post(f"/v1/runs/{run_id}/stop")
    shared_plane.wait_for_state(run_id, "stopped")
    assert shared_plane.workers(run_id) == {}
    folder = shared_plane.folder(run_id)
    drained = [(folder / f"{role}.drained").stat().st_mtime for role in ("generator", "batcher")]
    assert drained == sorted(drained)
    # Stopping again: 200 and unchanged.
    assert shared_plane.post(f"/v1/runs/{run_id}/stop", status=200)["state"] == "stopped"
    shared_plane.post(f"/v1/runs/{run_id}/resume")
    shared_plane.wait_for_state(run_id, "running")


def test_stop_is_bounded_when_a_worker_does_not_drain(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run(supervision={"drain_deadline_s": 2})
    shared_plane.tell(run_id, "generator", "stubborn")
    began_s = time.monotonic()
    shared_plane.post(f"/v1/runs/{run_id}/stop")
    shared_plane.wait_for_state(run_id, "stopped", timeout_s=10)
    assert time.monotonic() - began_s < 8
    assert (shared_plane.folder(run_id) / "batcher.drained").exists()


def test_stop_now_kills_at_once(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run()
    pids = [w["pid"] for w in shared_plane.workers(run_id).values()]
    shared_plane.post(f"/v1/runs/{run_id}/stop", {"mode": "now"})
    shared_plane.wait_for_state(run_id, "stopped", timeout_s=5)
    assert not any(map(is_running, pids))
    assert not (shared_plane.folder(run_id) / "generator.drained").exists()


def test_a_finished_run_is_evaluated_and_completes(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run(**TRAINING)
    assert set(shared_plane.workers(run_id)) == {
        "generator",
        "batcher",
        "target_forward",
        "drafter_trainer",
    }
    shared_plane.tell(run_id, "drafter_trainer", "finish")
    done = shared_plane.wait_for_state(run_id, "completed")
    assert done["acceptance_length"] == 3.5
    assert shared_plane.workers(run_id) == {}
    [checkpoint] = shared_plane.get(f"/v1/runs/{run_id}/checkpoints")["items"]
    assert checkpoint["step"] == 1
    assert checkpoint["acceptance_length"] == 3.5
    for role in ("generator", "batcher", "target_forward", "drafter_trainer"):
        assert (shared_plane.folder(run_id) / f"{role}.drained").exists()
    record = json.loads((shared_plane.folder(run_id) / "run.json").read_text())
    assert record["state"] == "completed"


@pytest.mark.parametrize(
    ("behaviour", "mode", "how"),
    [
        ("slow", "drain", "evaluator 0: drained"),
        (
            "stubborn",
            "drain",
            "kills evaluator 0: did not drain within supervision.drain_deadline_s (2 s)",
        ),
        ("stubborn", "now", "kills evaluator 0: stopped without a drain"),
    ],
)
def test_a_run_is_stopped_when_its_evaluator_has_gone(
    shared_plane: ControlPlane, behaviour: str, mode: str, how: str
) -> None:
    run_id = shared_plane.start_run(**TRAINING, supervision={"drain_deadline_s": 2})
    shared_plane.tell(run_id, "evaluator", behaviour)
    shared_plane.tell(run_id, "drafter_trainer", "finish")

    def evaluator() -> dict | None:
        row = shared_plane.workers(run_id).get("evaluator")
        return row if row and row["state"] == "running" else None

    pid = shared_plane.wait(evaluator, "the evaluator to work")["pid"]
    shared_plane.post(f"/v1/runs/{run_id}/stop", {"mode": mode})
    shared_plane.wait_for_state(run_id, "stopped", timeout_s=8)
    assert not is_running(pid)
    assert shared_plane.workers(run_id, live=False)["evaluator"]["state"] == "exited"
    log = (shared_plane.data.parent / "control_plane.log").read_text()
    assert f"run {run_id}: {how}" in log
    [evaluation] = shared_plane.get(f"/v1/runs/{run_id}/evaluations")["items"]
    assert evaluation["problem"] == "the run was stopped before the evaluation ended"


def test_two_runs_do_not_disturb_each_other(shared_plane: ControlPlane) -> None:
    first, second = shared_plane.start_run(), shared_plane.start_run()
    before = shared_plane.workers(second)
    shared_plane.tell(first, "generator", "fatal")
    shared_plane.wait_for_state(first, "failed")
    shared_plane.wait(lambda: not shared_plane.workers(first), "the failed run's workers to go")
    after = shared_plane.workers(second)
    assert {w["id"] for w in after.values()} == {w["id"] for w in before.values()}
    ticks = shared_plane.ticks(second, "generator")
    shared_plane.wait(lambda: shared_plane.ticks(second, "generator") > ticks, "more ticks")
    assert shared_plane.run(second)["state"] == "running"


def test_exports_run_one_after_another_on_a_running_run(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run()
    first = shared_plane.post(f"/v1/runs/{run_id}/exports", {"checkpoints": "all"})["id"]
    second = shared_plane.post(f"/v1/runs/{run_id}/exports")["id"]

    def done(export_id: str) -> bool:
        return bool(shared_plane.get(f"/v1/exports/{export_id}")["state"] == "completed")

    shared_plane.wait(lambda: done(first) and done(second), "both exports")
    job = json.loads((shared_plane.folder(run_id) / "job.json").read_text())
    assert job["id"] == second
    assert job["destination"].startswith("file://")
    assert shared_plane.run(run_id)["state"] == "running"


def test_a_cancelled_export_ends_with_its_worker(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run()
    shared_plane.tell(run_id, "archiver", "stubborn")
    export_id = shared_plane.post(f"/v1/runs/{run_id}/exports")["id"]

    def state() -> str:
        return str(shared_plane.get(f"/v1/exports/{export_id}")["state"])

    shared_plane.wait(lambda: state() == "running", "the export to begin")
    shared_plane.http.delete(f"/v1/exports/{export_id}")
    shared_plane.wait(lambda: state() == "cancelled", "the export to end")
    shared_plane.wait(lambda: "archiver" not in shared_plane.workers(run_id), "its worker to go")


def test_an_export_whose_worker_keeps_failing_fails_without_the_run(
    shared_plane: ControlPlane,
) -> None:
    run_id = shared_plane.start_run()
    shared_plane.tell(run_id, "archiver", "crash")
    export_id = shared_plane.post(f"/v1/runs/{run_id}/exports")["id"]

    def ended() -> dict | None:
        export = shared_plane.get(f"/v1/exports/{export_id}")
        return export if export["state"] == "failed" else None

    [problem] = shared_plane.wait(ended, "the export to fail")["problems"]
    assert "the store is away" in problem
    assert shared_plane.run(run_id)["state"] == "running"


def test_link_keys_are_private_and_in_no_other_file(control_plane: ControlPlane) -> None:
    run_id = control_plane.start_run()
    path = control_plane.data / "link_keys" / f"{run_id}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = json.loads(path.read_text())["server_secret"].encode()
    control_plane.post(f"/v1/runs/{run_id}/stop")
    control_plane.wait_for_state(run_id, "stopped")
    control_plane.stop(signal.SIGTERM)
    files = [p for p in control_plane.data.parent.rglob("*") if p.is_file() and p != path]
    assert len(files) > 4
    assert not [p for p in files if secret in p.read_bytes()]
