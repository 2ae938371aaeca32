"""The control plane as a process: how it starts, is told off, ends, and is killed."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from control_plane.server import listen, serve
from control_plane.settings import Settings
from shared.errors import ConflictError, DatabaseFault, EnvironmentFault

ROOT = Path(__file__).parents[3]
SERVE = """
import sys
from pathlib import Path
from control_plane.server import serve
from control_plane.settings import Settings
sys.exit(serve(Settings(data=Path(sys.argv[1]), port=int(sys.argv[2]), max_active_runs=0)))
"""


@contextmanager
def control_plane(data: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """A control plane process that answers; killed at the end if it still lives."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SERVE, str(data), str(port)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "control plane at" in line:
                    break
            else:
                raise AssertionError(f"it ended with {process.wait()}")
            wait_until_ready(port)
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            assert httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).is_success
            return
        except httpx.TransportError:
            if time.monotonic() > deadline:
                raise


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """`serve` takes over the root logger, as the process of its own that it usually is."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        number: int = sock.getsockname()[1]
    return number


def start_run(port: int) -> str:
    body = {"preset": "demo", "overrides": {"data.num_prompts": 12}}
    url = f"http://127.0.0.1:{port}/v1/runs"
    response = httpx.post(url, json=body, trust_env=False)
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


def test_state_outlives_kill_and_a_signal_ends_it_cleanly(tmp_path: Path, port: int) -> None:
    with control_plane(tmp_path, port) as first:
        run_id = start_run(port)
        first.kill()
        first.wait()
    with control_plane(tmp_path, port) as second:
        url = f"http://127.0.0.1:{port}/v1/runs/{run_id}"
        assert httpx.get(url, trust_env=False).json()["state"] == "queued"
        # An open event stream must not hold up the end.
        with httpx.stream("GET", f"{url}/events", trust_env=False) as stream:
            lines = stream.iter_lines()
            assert any(line == "event: run" for line in lines)
            second.send_signal(signal.SIGTERM)
            assert second.wait(20) == 0
            list(lines)
    assert not (tmp_path / "control_plane.sqlite-wal").exists()


def test_what_stands_in_the_way_is_named(tmp_path: Path, port: int) -> None:
    with control_plane(tmp_path, port) as running:
        with pytest.raises(ConflictError, match=f"pid {running.pid}"):
            serve(Settings(data=tmp_path, port=port))
        with pytest.raises(EnvironmentFault, match=f"port {port} on 127.0.0.1 is in use"):
            serve(Settings(data=tmp_path / "other", port=port))
        assert running.poll() is None
    with pytest.raises(EnvironmentFault, match="no address"):
        listen("192.0.2.1", port)
    with pytest.raises(EnvironmentFault, match="not an address"):
        listen("no such host", port)


def test_a_foreign_database_ends_the_start_with_its_reason(tmp_path: Path, port: int) -> None:
    (tmp_path / "control_plane.sqlite").write_text("something else entirely " * 40)
    with pytest.raises(DatabaseFault, match="not a usable SQLite database"):
        serve(Settings(data=tmp_path, port=port))


def test_importing_the_control_plane_loads_no_torch() -> None:
    code = (
        "import sys, pkgutil, importlib, control_plane\n"
        "skip = ('control_plane.store.migrations.env', 'control_plane.cli.__main__')\n"
        "for m in pkgutil.walk_packages(control_plane.__path__, 'control_plane.'):\n"
        "    if m.name not in skip: importlib.import_module(m.name)\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'transformers'}))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
