"""What the command line writes: JSON or text results, progress that suits the terminal."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click


def emit_json(value: Any) -> None:
    """A result as indented JSON on standard output."""
    click.echo(json.dumps(value, indent=2, sort_keys=False))


def note(text: str) -> None:
    """A remark on standard error, so that standard output stays the result."""
    click.echo(text, err=True)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns as wide as their content; None shows as '-'."""
    cells = [list(head)] + [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def shortened(text: str | None, limit: int = 60) -> str | None:
    """The beginning of a text that would push a table's columns off the screen."""
    return text if text is None or len(text) <= limit else text[: limit - 1].rstrip() + "…"


class ProgressLine:
    """One line that is rewritten on a terminal, and a plain line every few seconds elsewhere."""

    def __init__(self, every_s: float = 5.0) -> None:
        self._tty = sys.stderr.isatty()
        self._every_s = every_s
        self._last_at = 0.0
        self._last_text = ""

    def show(self, text: str, *, force: bool = False) -> None:
        """Show `text`; away from a terminal only when it changed and the interval has passed."""
        if self._tty:
            width = shutil.get_terminal_size().columns
            sys.stderr.write("\r\x1b[2K" + text[: max(20, width - 1)])
            sys.stderr.flush()
        elif text != self._last_text and (
            force or time.monotonic() - self._last_at >= self._every_s
        ):
            note(text)
            self._last_at = time.monotonic()
        self._last_text = text

    def close(self) -> None:
        """Leave the line on the screen and go to the next one."""
        if self._tty and self._last_text:
            sys.stderr.write("\n")
            sys.stderr.flush()
        self._last_text = ""
