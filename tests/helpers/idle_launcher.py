"""A launcher that starts nothing: for tests of what happens around workers."""

from __future__ import annotations

import itertools

from services.launchers import LaunchSpec, ProcessHandle


class IdleLauncher:
    """Remembers what it was asked to start; every process 'lives' until it is told to end."""

    def __init__(self) -> None:
        self.launched: list[LaunchSpec] = []
        self._alive: set[ProcessHandle] = set()
        self._pids = itertools.count(1_000_000)

    async def launch(self, spec: LaunchSpec) -> ProcessHandle:
        self.launched.append(spec)
        handle = ProcessHandle("nowhere", next(self._pids), "boot/1")
        self._alive.add(handle)
        return handle

    def adopt(self, handle: ProcessHandle) -> bool:
        return handle in self._alive

    def is_alive(self, handle: ProcessHandle) -> bool:
        return handle in self._alive

    def exit_code(self, handle: ProcessHandle) -> int | None:
        return None if handle in self._alive else 0

    def terminate(self, handle: ProcessHandle) -> None:
        self._alive.discard(handle)

    def kill(self, handle: ProcessHandle) -> None:
        self._alive.discard(handle)
