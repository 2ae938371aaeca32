"""Where a row lies, and what a reader hands on: a row, or a place that it could not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec


class Place(msgspec.Struct, frozen=True):
    """`number` counts from 1; `byte` is the offset in the unpacked file, where the format has one.

    A line is one of JSONL, a record one of a JSON array, a row one of a table.
    """

    file: str
    unit: Literal["line", "record", "row"]
    number: int
    byte: int | None = None

    def __str__(self) -> str:
        return f"{self.unit} {self.number}" + ("" if self.byte is None else f" (byte {self.byte})")


class RawRow(msgspec.Struct, frozen=True):
    """One row as it is in the file: JSON text, or the value where the reader parsed it already."""

    place: Place
    content: bytes | Mapping[str, Any]


class Unreadable(msgspec.Struct, frozen=True):
    """What could not be read at `place`, and why."""

    place: Place
    problem: str
    excerpt: str = ""
