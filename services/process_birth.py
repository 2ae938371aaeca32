"""When a process was born, in a form that no change of the machine's clock touches.

On Linux: the id of this boot and the clock ticks from it to the process's start, as the kernel
counts them. Elsewhere the start time that the system reports. A process number is used again
sooner or later; number and birth together are not.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 22 - 3  # of /proc/PID/stat, counted from the state, the first one after the name


def process_birth(pid: int) -> str | None:
    """The birth of a running process; None when there is none (a zombie runs no more).

    OSError when the machine cannot say now (no open file left).
    """
    boot_id = _read_boot_id()
    if boot_id is None:
        return _reported_birth(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(b")")[2].split()  # the name may hold blanks and brackets itself
    return None if fields[0] in (b"Z", b"X") else f"{boot_id}/{int(fields[_START_FIELD])}"


@cache
def _read_boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (FileNotFoundError, PermissionError):
        return None


def _reported_birth(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return None if is_zombie else f"epoch/{process.create_time()!r}"
    except psutil.NoSuchProcess:
        return None
