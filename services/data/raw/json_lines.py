"""JSONL: one row a line, from chunks of bytes, holding one chunk and one line at a time."""

from __future__ import annotations

from collections.abc import Iterator

from services.data.raw.places import Place, RawRow, Unreadable
from services.data.raw.streams import Chunks
from shared.units import format_bytes

MAX_ROW_BYTES = 16 * 2**20
BOM = b"\xef\xbb\xbf"


def json_lines(
    chunks: Chunks, *, max_row_bytes: int = MAX_ROW_BYTES
) -> Iterator[RawRow | Unreadable]:
    """Rows in order; blank lines are skipped but counted. A line that is too long is left out.

    Where the stream is cut off, the last item says so; the lines before it are whole.
    """
    number, rest, is_too_long = 1, b"", False

    def place() -> Place:
        return Place(chunks.name, "line", number)

    for at, chunk in enumerate(chunks):
        first, *lines = (chunk if at else chunk.removeprefix(BOM)).split(b"\n")
        if not is_too_long:
            rest += first
            if len(rest) > max_row_bytes:
                is_too_long, rest = True, b""
                yield Unreadable(
                    place(),
                    f"longer than {format_bytes(max_row_bytes)}; the file must have one JSON "
                    "object a line",
                )
        if not lines:
            continue
        lines.insert(0, rest)
        rest, is_too_long = lines.pop(), False
        for line in lines:
            if line and not line.isspace():
                yield RawRow(place(), line.rstrip(b"\r"))
            number += 1
    if chunks.cut is not None:
        yield Unreadable(place(), chunks.cut, rest[:200].decode("utf-8", "replace"))
    elif rest and not rest.isspace():
        yield RawRow(place(), rest.rstrip(b"\r"))
