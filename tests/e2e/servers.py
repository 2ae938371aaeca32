"""A control plane of its own for browser tests: the real `up` command on a temporary folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 40.0
STOP_LIMIT_S = 60.0


class Server:
    """`dflash-mesh up` as a process; `token` None leaves it open to this machine."""

    def __init__(self, folder: Path, *, token: str | None = None) -> None:
        self.folder = folder
        self.token = token
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder.parent / f"{folder.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "DFLASH_MESH_TOKEN"}
        if self.token is not None:
            environment["DFLASH_MESH_TOKEN"] = self.token
        command = [
            *(sys.executable, "-m", "control_plane.cli", "up", "--data", str(self.folder)),
            *("--port", str(self.port), "--export-root", str(self.folder)),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait(self._ready, "the control plane to be ready", START_LIMIT_S)

    def get(self, path: str) -> Any:
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        answer = httpx.get(self.url + path, headers=headers, timeout=10, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait(self, condition: Callable[[], Any], what: str, limit_s: float) -> Any:
        """The first true value of `condition`; fails with the end of the log when none comes."""
        ends_at = time.monotonic() + limit_s
        while not (value := condition()):
            running = self._process is not None and self._process.poll() is None
            if not running or time.monotonic() > ends_at:
                raise AssertionError(f"waited in vain for {what}\n{self.log_end()}")
            time.sleep(0.1)
        return value

    def log_end(self) -> str:
        return self._log.read_text("utf-8", "replace")[-3000:]

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def forget(self) -> None:
        """Reap a process that was killed, before another is started on the same folder."""
        assert self._process is not None
        self._process.wait(STOP_LIMIT_S)
        self._process = None

    def stop(self) -> int:
        """SIGTERM and the exit status; runs that still go on are drained first."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        try:
            return self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the control plane did not stop\n{self.log_end()}") from None

    def _ready(self) -> bool:
        try:
            return httpx.get(self.url + "/readyz", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False
