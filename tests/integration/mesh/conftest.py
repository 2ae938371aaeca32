"""A control plane as a process of its own, with roles that do what a test tells them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

ROOT = Path(__file__).parents[3]
DEADLINE_S = 30.0
SUPERVISION = {
    "heartbeat_s": 0.2,
    "lease_s": 3,
    "startup_s": 20,
    "drain_deadline_s": 6,
    "backoff_s": 0.1,
    "max_backoff_s": 0.4,
    "breaker_restarts": 2,
    "orphan_grace_s": 20,
}


class ControlPlane:
    """One control plane and what a test asks of it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=10, trust_env=False)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        log = (self.data.parent / "control_plane.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.integration.mesh.server",
                    str(self.data),
                    str(self.port),
                    *options,
                ],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        self.wait(self._answers, "the control plane to answer")

    def stop(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=DEADLINE_S)

    def wait(self, condition: Callable[[], Any], what: str, timeout_s: float = DEADLINE_S) -> Any:
        """The first true value of `condition`; fails with the log when there is none in time."""
        deadline_s = time.monotonic() + timeout_s
        while not (value := condition()):
            if time.monotonic() > deadline_s:
                log = (self.data.parent / "control_plane.log").read_text()[-3000:]
                raise AssertionError(f"waited in vain for {what}\n{log}")
            time.sleep(0.05)
        return value

    def submit(self, **tables: Any) -> str:
        config = {
            "target": {"path": "builtin:tiny"},
            "data": {"prompts": "builtin:tiny", "num_prompts": 40},
            "stages": ["generate", "tokenise"],
            "archive": {"worker": False},
            **tables,
            "supervision": {**SUPERVISION, **tables.get("supervision", {})},
        }
        answer = self.http.post("/v1/runs", json={"config": config})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def get(self, path: str) -> Any:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any = None, status: int = 202) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def run(self, run_id: str) -> Any:
        return self.get(f"/v1/runs/{run_id}")

    def wait_for_state(self, run_id: str, state: str, timeout_s: float = DEADLINE_S) -> Any:
        def reached() -> Any:
            seen = self.run(run_id)
            return seen if seen["state"] == state else None

        return self.wait(reached, f"run {run_id} to be {state}", timeout_s)

    def workers(self, run_id: str, *, live: bool = True) -> dict[str, Any]:
        """By role: the newest worker."""
        path = f"/v1/workers?run_id={run_id}&live={str(live).lower()}&limit=100"
        return {w["role"]: w for w in reversed(self.get(path)["items"])}

    def start_run(self, **tables: Any) -> str:
        """A run whose workers are all at work."""
        run_id = self.submit(**tables)
        self.wait_for_state(run_id, "running")
        self.wait(
            lambda: all(w["state"] == "running" for w in self.workers(run_id).values()),
            "every worker to run",
        )
        return run_id

    def stop_runs(self) -> None:
        """Stop every run at once and wait until their workers are gone."""
        for run in self.get("/v1/runs?limit=100")["items"]:
            if run["state"] not in ("stopped", "completed", "failed"):
                self.http.post(f"/v1/runs/{run['id']}/stop", json={"mode": "now"})
        self.wait(lambda: not self.get("/v1/workers?live=true")["items"], "every worker to be gone")

    def folder(self, run_id: str) -> Path:
        return self.data / "runs" / run_id

    def tell(self, run_id: str, role: str, behaviour: str | None) -> None:
        path = self.folder(run_id) / f"{role}.behaviour"
        if behaviour is None:
            path.unlink()
        else:
            partial = path.with_suffix(".partial")
            partial.write_text(behaviour)
            partial.replace(path)

    def ticks(self, run_id: str, role: str) -> int:
        """Work that the role's newest worker has reported, in tokens."""
        return int(self.workers(run_id)[role]["metrics"].get("tokens_total", 0))

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.http.close()
        self._kill_workers()

    def _kill_workers(self) -> None:
        """End the workers of this data folder's control plane that a test has left."""
        for process in psutil.process_iter():
            try:
                if self.url in process.cmdline() and process.pid != os.getpid():
                    process.kill()
            except psutil.Error:
                continue

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            log = (self.data.parent / "control_plane.log").read_text()[-3000:]
            raise AssertionError(f"the control plane ended\n{log}")
        try:
            return self.http.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture
def control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """One of its own, for tests that stop or kill it."""
    data = tmp_path / "data"
    data.mkdir()
    plane = ControlPlane(data)
    try:
        plane.start()
        yield plane
    finally:
        plane.close()


@pytest.fixture(scope="module")
def _module_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    data = tmp_path_factory.mktemp("mesh") / "data"
    data.mkdir()
    plane = ControlPlane(data)
    try:
        plane.start()
        yield plane
    finally:
        plane.close()


@pytest.fixture
def shared_plane(_module_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The one of the module; whatever a test leaves running is stopped."""
    yield _module_plane
    _module_plane.stop_runs()
