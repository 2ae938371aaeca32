"""The rule of `data.bad_rows` over a stream of rows: stop with the first ones, or put them aside.

Of broken rows the first are kept to be shown; with "quarantine" all go to a file, one JSON object a
line with place, cause and the row's beginning. Reading ends early where it is clear that the data
is at fault as a whole, so that a wrong column name does not cost a pass over everything.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, Literal, Self

import msgspec

from services.data.prompts import BadRow, PromptRow
from services.files import atomic_writer, disk_faults
from shared.errors import DataError

_SHOWN_PROBLEMS = 10
_ENOUGH_BAD_ROWS = 1000


class BadRows:
    """Takes the broken rows out of one stream; use it as a context manager.

    `path` is where quarantined rows go; the file is there once the block has ended, and only when
    there were any.
    """

    def __init__(
        self, source: str, policy: Literal["stop", "quarantine"], path: Path | None = None
    ) -> None:
        self.count = 0
        self._source, self._policy = source, policy
        self._path = path if policy == "quarantine" else None
        self._first: list[BadRow] = []
        self._stack = ExitStack()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(*exception)  # type: ignore[arg-type]

    def good_rows(self, rows: Generator[PromptRow | BadRow, None, None]) -> Iterator[PromptRow]:
        """The usable rows in order; `rows` is closed at the end.

        DataError when there is none, and, with policy "stop", at the end when any was broken.
        """
        num_good = 0
        with closing(rows):
            for row in rows:
                if isinstance(row, PromptRow):
                    num_good += 1
                    yield row
                    continue
                self._add(row)
                is_hopeless = self._policy == "stop" or num_good == 0
                if self.count >= _ENOUGH_BAD_ROWS and is_hopeless:
                    raise DataError(self._message(at_least=True))
        if self.count and self._policy == "stop":
            raise DataError(self._message())
        if not num_good:
            reason = self._message() if self.count else f"{self._source} holds no prompts"
            raise DataError(
                f"{reason}; give at least one row with 'prompt', 'messages', 'conversations' or "
                "'instruction'"
            )

    def _add(self, row: BadRow) -> None:
        self.count += 1
        if len(self._first) < _SHOWN_PROBLEMS:
            self._first.append(row)
        if self._path is not None:
            if self._file is None:
                self._file = self._stack.enter_context(atomic_writer(self._path))
            with disk_faults(self._path):
                self._file.write(msgspec.json.encode(row) + b"\n")

    def _message(self, *, at_least: bool = False) -> str:
        shown = "; ".join(self._shown(row) for row in self._first)
        more = (
            f"; and {self.count - len(self._first)} more" if self.count > len(self._first) else ""
        )
        rows = "row is" if self.count == 1 else "rows are"
        number = f"at least {self.count}" if at_least else str(self.count)
        remedy = (
            "(data.bad_rows = 'quarantine' puts broken rows aside and goes on)"
            if self._policy == "stop"
            else "(none is usable)"
        )
        return f"{self._source}: {number} {rows} broken: {shown}{more} {remedy}"

    def _shown(self, row: BadRow) -> str:
        where = "" if row.place.file == self._source else f"{row.place.file}, "
        return f"{where}{row.place}: {row.problem}"
