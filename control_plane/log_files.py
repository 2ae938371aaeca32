"""The last lines of a run's log files.

Only files named ROLE-RANK.log in the run's logs folder are opened, never through a symbolic link,
and of each only the end. Lines of several files are merged by the time that each line starts with;
a line without one (a traceback) stays below the line that it follows. Secret values known to this
process are replaced, whatever a library may have logged.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from control_plane.routes.models import LogEntry, LogsView
from services.files import disk_faults
from services.secret_values import known_secrets, redact
from shared.states import Role

TAIL_BYTES = 2**20
_NAME = re.compile(rf"^({'|'.join(Role)})-(\d{{1,4}})\.log$")
_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT[\d:.]+Z?) (DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_LEVELS = ("debug", "info", "warning", "error")
_MAX_LINE_CHARACTERS = 4000


@dataclass(frozen=True)
class _Line:
    time: str
    entry: LogEntry


def read_logs(
    folder: Path, *, role: Role | None, rank: int | None, level: str | None, tail: int
) -> LogsView:
    """The last `tail` lines of the wanted workers, oldest first. Blocks.

    EnvironmentFault when the folder may not be read.
    """
    lines: list[_Line] = []
    truncated = False
    with disk_faults(folder):
        paths = sorted(folder.glob("*.log")) if folder.is_dir() else []
    for path in paths:
        match = _NAME.match(path.name)
        if match is None or role not in (None, match[1]) or rank not in (None, int(match[2])):
            continue
        text, cut = _tail(path)
        truncated |= cut
        lines.extend(_parse(text, match[1], int(match[2])))
    if level is not None:
        lowest = _LEVELS.index(level)
        lines = [line for line in lines if _LEVELS.index(line.entry.level or "info") >= lowest]
    lines.sort(key=lambda line: line.time)  # stable: lines of one file keep their order
    return LogsView(
        items=[line.entry for line in lines[-tail:]], truncated=truncated or len(lines) > tail
    )


def _tail(path: Path) -> tuple[str, bool]:
    """The end of a file, from the start of a line, and whether there was more before."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return "", False  # removed meanwhile, or a link: nothing of it is shown
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        start = max(0, size - TAIL_BYTES)
        file.seek(start)
        data = file.read(TAIL_BYTES)
    if start:
        data = data.partition(b"\n")[2]
    return redact(data, known_secrets()).decode("utf-8", "replace"), start > 0


def _parse(text: str, role: str, rank: int) -> list[_Line]:
    lines: list[_Line] = []
    time, level = "", None
    for raw in text.splitlines():
        match = _LINE.match(raw)
        if match is not None:
            time, level = match[1], match[2].lower().replace("critical", "error")
        entry = LogEntry.model_validate(
            {"role": role, "rank": rank, "level": level, "line": raw[:_MAX_LINE_CHARACTERS]}
        )
        lines.append(_Line(time, entry))
    return lines
