"""The control plane dies, is killed, shuts down: nothing is lost, workers go on."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.mesh.conftest import ControlPlane
from tests.integration.mesh.test_supervision import is_running


def test_kill_9_in_the_middle_of_a_run_and_the_same_workers_go_on(
    control_plane: ControlPlane,
) -> None:
    run_id = control_plane.start_run()
    before = control_plane.workers(run_id)
    control_plane.stop(signal.SIGKILL)
    assert all(is_running(w["pid"]) for w in before.values())
    control_plane.start()
    ticks = control_plane.ticks(run_id, "generator")
    control_plane.wait(lambda: control_plane.ticks(run_id, "generator") > ticks, "a heartbeat")
    after = control_plane.workers(run_id)
    assert {w["id"] for w in after.values()} == {w["id"] for w in before.values()}
    assert all(w["restarts"] == 0 for w in after.values())
    assert control_plane.run(run_id)["state"] == "running"


def test_who_died_meanwhile_is_started_again(control_plane: ControlPlane) -> None:
    run_id = control_plane.start_run()
    before = control_plane.workers(run_id)
    control_plane.stop(signal.SIGKILL)
    os.kill(before["batcher"]["pid"], signal.SIGKILL)
    control_plane.start()

    def replaced() -> bool:
        now = control_plane.workers(run_id).get("batcher")
        return bool(now and now["id"] != before["batcher"]["id"] and now["state"] == "running")

    control_plane.wait(replaced, "another batcher")
    assert control_plane.workers(run_id)["generator"]["id"] == before["generator"]["id"]


def test_an_adopted_worker_is_supervised_and_stopped_like_any_other(
    control_plane: ControlPlane,
) -> None:
    run_id = control_plane.start_run()
    control_plane.stop(signal.SIGKILL)
    control_plane.start()
    adopted = control_plane.workers(run_id)["generator"]
    os.kill(adopted["pid"], signal.SIGKILL)

    def replaced() -> bool:
        now = control_plane.workers(run_id).get("generator")
        return bool(now and now["id"] != adopted["id"] and now["state"] == "running")

    control_plane.wait(replaced, "another generator")
    control_plane.post(f"/v1/runs/{run_id}/stop")
    control_plane.wait_for_state(run_id, "stopped")
    assert control_plane.workers(run_id) == {}


@pytest.mark.parametrize("resume", [True, False])
def test_sigterm_drains_and_pauses_and_the_next_start_resumes_or_not(
    control_plane: ControlPlane, resume: bool
) -> None:
    run_id = control_plane.start_run()
    pids = [w["pid"] for w in control_plane.workers(run_id).values()]
    assert control_plane.stop(signal.SIGTERM) == 0
    assert not any(map(is_running, pids))
    for role in ("generator", "batcher"):
        assert (control_plane.folder(run_id) / f"{role}.drained").exists()
    control_plane.start(*([] if resume else ["--no-resume"]))
    if resume:
        control_plane.wait_for_state(run_id, "running")
        assert len(control_plane.workers(run_id)) == 2
    else:
        paused = control_plane.run(run_id)
        assert (paused["state"], paused["reason"]) == ("paused", "control plane shut down")
        control_plane.post(f"/v1/runs/{run_id}/resume")
        control_plane.wait_for_state(run_id, "running")


def test_an_export_goes_on_after_kill_9(control_plane: ControlPlane) -> None:
    run_id = control_plane.start_run()
    control_plane.tell(run_id, "archiver", "stubborn")
    export_id = control_plane.post(f"/v1/runs/{run_id}/exports")["id"]

    def state() -> str:
        return str(control_plane.get(f"/v1/exports/{export_id}")["state"])

    control_plane.wait(lambda: state() == "running", "the export to begin")
    archiver = control_plane.workers(run_id)["archiver"]
    control_plane.stop(signal.SIGKILL)
    control_plane.tell(run_id, "archiver", None)
    os.kill(archiver["pid"], signal.SIGKILL)
    control_plane.start()
    control_plane.wait(lambda: state() == "completed", "the export to complete")
