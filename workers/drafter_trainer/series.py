"""metrics.jsonl: one line a step, in step order, without gaps or repeats.

A checkpoint stands at a step; what later steps wrote is cut off when training resumes from it, and
the replayed steps write the same lines again. A torn last line (a kill in the middle of a write)
is cut as well.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from services.files import disk_faults, sync_file


class MetricsLog:
    """Appends records to `path`; each must hold its `step`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_faults(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what could not be written must not stay behind and come again on close.
            self._file = path.open("ab", buffering=0)

    def append(self, record: dict[str, Any]) -> None:
        """One line, handed to the operating system at once. Raises DiskFullError."""
        line = json.dumps(record, allow_nan=False, separators=(", ", ": ")).encode() + b"\n"
        start = self._file.seek(0, os.SEEK_END)
        try:
            with disk_faults(self.path):
                rest = memoryview(line)
                while rest:
                    rest = rest[self._file.write(rest) :]
        except Exception:
            # A part of the line may have reached the disk: the file must not hold half a record.
            if os.fstat(self._file.fileno()).st_size > start:
                os.ftruncate(self._file.fileno(), start)
            raise

    def sync(self) -> None:
        sync_file(self._file)

    def close(self) -> None:
        self._file.close()


def truncate_to_step(path: Path, step: int) -> int:
    """Cut `path` after its last record with a step of at most `step`; how many bytes were cut."""
    if not path.exists():
        return 0
    keep = 0
    with disk_faults(path), path.open("r+b") as file:
        for line in file:
            if not line.endswith(b"\n") or _step_of(line) > step:
                break
            keep += len(line)
        size = file.seek(0, os.SEEK_END)
        if keep < size:
            file.truncate(keep)
            sync_file(file)
    return size - keep


def _step_of(line: bytes) -> float:
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")
    return step if isinstance(step, int) else float("inf")
