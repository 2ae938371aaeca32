"""Workers as processes of this machine, each in a session of its own.

A worker outlives the control plane that started it: stdin is empty, stdout and stderr go to its
log file, and no signal of the terminal reaches it. The worker's process group is its own, so
`kill` takes whatever the worker had started along. A child that has ended is looked at before it
is reaped, so that its group id cannot have been reused when the group is killed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import services
from services.files import disk_faults
from services.launchers.base import LaunchSpec, ProcessHandle
from services.process_birth import process_birth
from shared.errors import EnvironmentFault, ExhaustedFault

logger = logging.getLogger(__name__)
TOKEN_VARIABLE = "DFLASH_MESH_TOKEN"
_REAP_INTERVAL_S = 2.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})


class LocalLauncher:
    """Starts `python -m PACKAGE.ROLE` with the address and the token of the control plane."""

    def __init__(self, url: str, token: str | None = None, *, package: str = "workers") -> None:
        self.url = url
        self._token = token
        self._package = package
        self._host = socket.gethostname()
        self._children: dict[ProcessHandle, subprocess.Popen[bytes]] = {}
        self._reaped_s = time.monotonic()
        self._exit_codes: dict[ProcessHandle, int] = {}

    async def launch(self, spec: LaunchSpec) -> ProcessHandle:
        """Start the process; it is in its own session when this returns."""
        return await asyncio.to_thread(self._launch, spec)

    def adopt(self, handle: ProcessHandle) -> bool:
        """True when the very process is still there."""
        return self.is_alive(handle)

    def is_alive(self, handle: ProcessHandle) -> bool:
        if handle.host != self._host:
            return False
        self._reap_now_and_then()
        if handle in self._children:
            return not self._reap(handle)
        return handle not in self._exit_codes and process_birth(handle.pid) == handle.birth

    def exit_code(self, handle: ProcessHandle) -> int | None:
        return self._exit_codes.get(handle)

    def terminate(self, handle: ProcessHandle) -> None:
        """SIGTERM to the worker alone: what it started is the worker's to end in good order."""
        if self.is_alive(handle):
            try:
                os.kill(handle.pid, signal.SIGTERM)
            except ProcessLookupError:
                logger.debug("process %d was gone before SIGTERM", handle.pid)

    def kill(self, handle: ProcessHandle) -> None:
        if self.is_alive(handle):
            _signal_group(handle.pid, signal.SIGKILL)

    def _launch(self, spec: LaunchSpec) -> ProcessHandle:
        command = [sys.executable, "-m", f"{self._package}.{spec.role.value}", *self._options(spec)]
        child: subprocess.Popen[bytes] | None = None
        try:
            with disk_faults(spec.log_path):
                spec.log_path.parent.mkdir(parents=True, exist_ok=True)
                log = spec.log_path.open("ab")
            with log:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=worker_environment(spec, os.environ, self._token),
                    start_new_session=True,
                )
            # One that has ended already is not reaped yet, so its number is still its own.
            handle = ProcessHandle(self._host, child.pid, process_birth(child.pid) or "ended")
        except OSError as error:
            if child is not None:
                child.kill()
                child.wait()
            kind = ExhaustedFault if error.errno in _EXHAUSTED else EnvironmentFault
            raise kind(f"{spec.role.value} {spec.rank} could not be started: {error}") from error
        self._children[handle] = child
        return handle

    def reap(self) -> None:
        """Collect every child that has ended, whether or not anybody asks for it again."""
        for handle in list(self._children):
            self._reap(handle)

    def _reap_now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reaped_s > _REAP_INTERVAL_S:
            self._reaped_s = now_s
            self.reap()

    def _reap(self, handle: ProcessHandle) -> bool:
        """Collect the child if it has ended, with whatever it left running; whether it had."""
        if os.waitid(os.P_PID, handle.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        _signal_group(handle.pid, signal.SIGKILL)
        self._exit_codes[handle] = self._children.pop(handle).wait()
        return True

    def _options(self, spec: LaunchSpec) -> list[str]:
        options = {
            "--url": self.url,
            "--run": spec.run_id,
            "--rank": str(spec.rank),
            "--incarnation": spec.incarnation,
            "--device": spec.device,
        }
        if spec.job_id is not None:
            options["--job"] = spec.job_id
        return [text for option in options.items() for text in option]


def worker_environment(
    spec: LaunchSpec, inherited: Mapping[str, str], token: str | None
) -> dict[str, str]:
    """The environment of a worker: the control plane's own, its token, threads, one GPU.

    'cuda:N' counts among the GPUs that the control plane itself may see.
    """
    env = dict(inherited)
    env.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # they would fill the worker's log
    env.pop(TOKEN_VARIABLE, None)
    if token is not None:
        env[TOKEN_VARIABLE] = token
    root = Path(services.__file__).parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(
            [str(root), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
        )
    if spec.num_threads is not None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            env[name] = str(spec.num_threads)
    kind, _, number = spec.device.partition(":")
    if kind == "cuda" and number:
        visible = [name for name in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        if visible and int(number) >= len(visible):
            raise EnvironmentFault(
                f"{spec.role.value} {spec.rank} is to use {spec.device}, but "
                f"CUDA_VISIBLE_DEVICES shows {len(visible)} GPUs: {','.join(visible)}"
            )
        env["CUDA_VISIBLE_DEVICES"] = visible[int(number)] if visible else number
    elif kind == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    return {**env, **spec.extra_env}


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        logger.debug("process group %d was gone before %s", pid, number.name)
