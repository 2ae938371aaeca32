"""Logging of a worker: its file in the run folder, stderr, and the run's log tail.

Before registration there is only stderr. After it, everything goes to logs/ROLE-RANK.log, and
warnings and errors travel to the control plane as LogLine events. The launcher usually points
stderr at that same file; then the file handler is left out, so that no line appears twice.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from shared.api.events import LogLine
from workers.runtime.context import WorkerContext

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"
_DATE_FORMAT = "%Y-%m-%dT%H:%M:%S"
# A worker that logs faster than this sends no more lines until the minute is over.
MAX_LINES_PER_MINUTE = 60


def _formatter() -> logging.Formatter:
    formatter = logging.Formatter(_FORMAT, _DATE_FORMAT)
    formatter.converter = time.gmtime
    return formatter


def log_to_stderr() -> None:
    """Everything from level info on, in UTC, one format for all workers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.captureWarnings(True)


@contextmanager
def log_to_worker_file(context: WorkerContext) -> Iterator[None]:
    """While inside, log to the worker's file and send warnings to the control plane."""
    handlers: list[logging.Handler] = [_EventHandler(context)]
    path = context.folder.log(context.role, context.rank)
    if not _is_stderr(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
    root = logging.getLogger()
    for handler in handlers:
        handler.setFormatter(_formatter())
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def _is_stderr(path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(sys.stderr.fileno()))
    except (OSError, ValueError):
        return False


class _EventHandler(logging.Handler):
    """Warnings and errors as LogLine events, at most so many in a minute."""

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(logging.WARNING)
        self._context = context
        self._minute = 0
        self._num_lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        minute = int(record.created // 60)
        if minute != self._minute:
            self._minute, self._num_lines = minute, 0
        self._num_lines += 1
        if self._num_lines > MAX_LINES_PER_MINUTE:
            return
        level: Literal["warning", "error"] = (
            "error" if record.levelno >= logging.ERROR else "warning"
        )
        self._context.emit(
            LogLine, level=level, message=record.getMessage()[:4000], created_at=record.created
        )
