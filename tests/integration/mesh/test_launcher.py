"""The local launcher with real processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from services.launchers import LaunchSpec, LocalLauncher, ProcessHandle
from shared.states import Role


@pytest.fixture
def launcher() -> LocalLauncher:
    return LocalLauncher("http://127.0.0.1:1", package="tests.integration.mesh.programs")


def spec(tmp_path: Path, role: Role, job_id: str | None = None) -> LaunchSpec:
    log = tmp_path / "logs" / f"{role}.log"
    return LaunchSpec("run-1", role, 0, "abcdef12", job_id, "cpu", log)


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s, "in vain"
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def words(tmp_path: Path, role: Role) -> list[str]:
    path = tmp_path / "logs" / f"{role}.log"
    until(lambda: path.exists() and path.read_text().endswith("\n"))
    return path.read_text().split()


async def test_kill_takes_what_the_worker_started_along(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    handle = await launcher.launch(spec(tmp_path, Role.GENERATOR))
    child, own_session, *rest = words(tmp_path, Role.GENERATOR)
    assert own_session == "True"
    assert rest == []  # stdin is empty
    assert launcher.is_alive(handle)
    assert launcher.exit_code(handle) is None
    launcher.kill(handle)
    until(lambda: not launcher.is_alive(handle))
    assert launcher.exit_code(handle) == -signal.SIGKILL
    until(lambda: not lives(int(child)))


async def test_a_worker_that_ends_leaves_nothing_behind(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    handle = await launcher.launch(spec(tmp_path, Role.BATCHER, job_id="job-1"))
    child, *options = words(tmp_path, Role.BATCHER)
    assert options == [
        *("--url", "http://127.0.0.1:1", "--run", "run-1", "--rank", "0"),
        *("--incarnation", "abcdef12", "--device", "cpu", "--job", "job-1"),
    ]
    until(lambda: not launcher.is_alive(handle))
    assert launcher.exit_code(handle) == 5
    until(lambda: not lives(int(child)))


async def test_another_launcher_adopts_by_pid_and_start_time(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    handle = await launcher.launch(spec(tmp_path, Role.GENERATOR))
    words(tmp_path, Role.GENERATOR)
    other = LocalLauncher("http://127.0.0.1:1")
    assert other.adopt(handle)
    reused = ProcessHandle(handle.host, handle.pid, "another boot/1")
    assert not other.adopt(reused)
    other.kill(reused)
    assert launcher.is_alive(handle)
    other.kill(handle)
    until(lambda: not other.is_alive(handle))
    assert other.exit_code(handle) is None
    until(lambda: not launcher.is_alive(handle))


async def test_sigterm_reaches_the_worker_alone(launcher: LocalLauncher, tmp_path: Path) -> None:
    handle = await launcher.launch(spec(tmp_path, Role.GENERATOR))
    words(tmp_path, Role.GENERATOR)
    launcher.terminate(handle)
    until(lambda: not launcher.is_alive(handle))
    assert launcher.exit_code(handle) == -signal.SIGTERM
    launcher.terminate(handle)  # gone: no error
