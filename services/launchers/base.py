"""The interface between the supervisor and whatever starts workers.

A launcher starts a process from a `LaunchSpec` and answers for it by its `ProcessHandle`. Handles
are plain values, so they survive the control plane in its database: after a restart the
supervisor adopts the processes that are still there. No call blocks for long: starting runs in a
thread, the rest reads the state of the operating system.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from shared.states import Role


@dataclass(frozen=True)
class LaunchSpec:
    """One incarnation of a worker to start. `device` is 'auto', 'cpu' or 'cuda:N' of the host."""

    run_id: str
    role: Role
    rank: int
    incarnation: str
    job_id: str | None
    device: str
    log_path: Path
    num_threads: int | None = None
    extra_env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessHandle:
    """A process of `host`; its birth (`services.process_birth`) tells a reused pid apart."""

    host: str
    pid: int
    birth: str


class Launcher(Protocol):
    """Starts and ends workers."""

    async def launch(self, spec: LaunchSpec) -> ProcessHandle:
        """Start a worker; EnvironmentFault when the operating system refuses."""

    def adopt(self, handle: ProcessHandle) -> bool:
        """Take charge of a process that an earlier control plane started; False if it is gone."""

    def is_alive(self, handle: ProcessHandle) -> bool:
        """Whether the process runs; one that this launcher started is reaped when it does not."""

    def exit_code(self, handle: ProcessHandle) -> int | None:
        """Exit code of a process that has ended (negative: the signal); None when unknown."""

    def terminate(self, handle: ProcessHandle) -> None:
        """SIGTERM to the worker: it drains."""

    def kill(self, handle: ProcessHandle) -> None:
        """SIGKILL to the worker and to everything it started."""
