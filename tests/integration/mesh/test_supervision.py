"""Workers as real processes: registration, restarts, the breaker, silence, supersession."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from services.process_birth import process_birth
from tests.integration.mesh.conftest import ControlPlane


def test_workers_register_work_and_are_restarted_after_sigkill(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run()
    before = shared_plane.workers(run_id)
    assert set(before) == {"generator", "batcher"}
    shared_plane.wait(lambda: shared_plane.ticks(run_id, "generator"), "tokens")
    os.kill(before["generator"]["pid"], signal.SIGKILL)

    def replaced() -> dict | None:
        now = shared_plane.workers(run_id).get("generator")
        is_new = now and now["id"] != before["generator"]["id"] and now["state"] == "running"
        return now if is_new else None

    after = shared_plane.wait(replaced, "another generator")
    assert after["restarts"] == 1
    assert shared_plane.workers(run_id)["batcher"]["id"] == before["batcher"]["id"]
    ended = shared_plane.get(f"/v1/workers?run_id={run_id}")["items"]
    killed = next(w for w in ended if w["id"] == before["generator"]["id"])
    assert killed["state"] == "failed"
    assert killed["last_error"] == "killed by signal 9"
    assert shared_plane.run(run_id)["state"] == "running"


def test_the_breaker_fails_a_run_whose_worker_keeps_crashing(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run()
    shared_plane.tell(run_id, "batcher", "crash")
    failed = shared_plane.wait_for_state(run_id, "failed")
    assert "batcher 0 ended 3 times" in failed["reason"]
    assert "this role crashes on request" in failed["reason"]
    shared_plane.wait(lambda: not shared_plane.workers(run_id), "everybody to go")
    assert (shared_plane.folder(run_id) / "generator.drained").exists()
    # What failed can be mended and resumed.
    shared_plane.tell(run_id, "batcher", None)
    shared_plane.post(f"/v1/runs/{run_id}/resume")
    shared_plane.wait_for_state(run_id, "running")


def test_a_fatal_error_fails_the_run_at_once_with_its_message(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run()
    shared_plane.tell(run_id, "generator", "fatal")
    failed = shared_plane.wait_for_state(run_id, "failed")
    assert failed["reason"] == "generator 0 failed: prompts.jsonl line 3: not JSON"
    assert shared_plane.workers(run_id, live=False)["generator"]["restarts"] == 0


def test_a_silent_worker_is_killed_and_replaced(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run()
    frozen = shared_plane.workers(run_id)["batcher"]
    os.kill(frozen["pid"], signal.SIGSTOP)

    def replaced() -> bool:
        now = shared_plane.workers(run_id).get("batcher")
        return bool(now and now["id"] != frozen["id"] and now["state"] == "running")

    shared_plane.wait(replaced, "another batcher")
    assert not is_running(frozen["pid"])


def test_a_superseded_incarnation_is_refused_for_good(shared_plane: ControlPlane) -> None:
    run_id = shared_plane.start_run()
    old = shared_plane.workers(run_id)["generator"]
    body = {
        "run_id": run_id,
        "role": "generator",
        "rank": 0,
        "incarnation": "feedfacecafe",
        "host": "elsewhere",
        "pid": 1,
        "pid_birth": "boot/1",
    }
    lease = shared_plane.post("/v1/workers", body, status=201)
    assert lease["link_keys"] is not None
    assert shared_plane.post("/v1/workers", body, status=201)["worker_id"] == lease["worker_id"]
    shared_plane.wait(lambda: not is_running(old["pid"]), "the old generator to exit by itself")
    beat = {"incarnation": "anything-else", "seq": 0, "state": "running"}
    answer = shared_plane.http.put(f"/v1/workers/{old['id']}/heartbeat", json=beat)
    assert answer.status_code == 409
    assert answer.json()["type"].endswith("superseded-worker")


def test_a_worker_given_to_the_registry_by_hand_is_never_signalled(
    shared_plane: ControlPlane,
) -> None:
    run_id = shared_plane.start_run()
    body = {
        "run_id": run_id,
        "role": "batcher",
        "rank": 0,
        "incarnation": "feedfacecafe",
        "host": "elsewhere",
        "pid": os.getpid(),
        "pid_birth": process_birth(os.getpid()),
    }
    lease = shared_plane.post("/v1/workers", body, status=201)
    shared_plane.post(f"/v1/runs/{run_id}/stop", {"mode": "now"})
    shared_plane.wait_for_state(run_id, "stopped")
    assert lease["worker_id"] not in [w["id"] for w in shared_plane.workers(run_id).values()]


@pytest.mark.parametrize(
    ("change", "status"),
    [({"role": "batcher", "rank": 4}, 409), ({"run_id": "nope"}, 404), ({"job_id": "x"}, 409)],
)
def test_who_is_not_wanted_gets_a_clear_answer(
    shared_plane: ControlPlane, change: dict, status: int
) -> None:
    run_id = shared_plane.submit()
    body = {
        "run_id": run_id,
        "role": "generator",
        "rank": 0,
        "incarnation": "feedfacecafe",
        "host": "h",
        "pid": 1,
        "pid_birth": "boot/1",
        **change,
    }
    answer = shared_plane.http.post("/v1/workers", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["detail"]


def test_sigterm_to_a_worker_drains_it_and_another_takes_its_place(
    shared_plane: ControlPlane,
) -> None:
    run_id = shared_plane.start_run()
    old = shared_plane.workers(run_id)["generator"]
    os.kill(old["pid"], signal.SIGTERM)
    drained = shared_plane.folder(run_id) / "generator.drained"
    shared_plane.wait(drained.exists, "the generator to drain")

    def replaced() -> bool:
        now = shared_plane.workers(run_id).get("generator")
        return bool(now and now["id"] != old["id"] and now["state"] == "running")

    shared_plane.wait(replaced, "another generator")


def test_workers_without_a_control_plane_drain_after_the_grace(control_plane: ControlPlane) -> None:
    run_id = control_plane.start_run(supervision={"orphan_grace_s": 1})
    pids = [w["pid"] for w in control_plane.workers(run_id).values()]
    control_plane.stop(signal.SIGKILL)
    began_s = time.monotonic()
    control_plane.wait(lambda: not any(map(is_running, pids)), "the orphans to exit")
    assert time.monotonic() - began_s > 1
    for role in ("generator", "batcher"):
        assert (control_plane.folder(run_id) / f"{role}.drained").exists()


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
