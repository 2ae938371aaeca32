"""Raw rows of a location, whatever its format: what a file holds decides, not its name.

    open_location -> for each file: packing -> format -> json_lines | json_array | tables -> rows

Nothing here knows what a row means. A row that is broken inside is for who reads its content; what
cannot even be told apart as a row comes out as Unreadable, and the stream goes on behind it where
that is possible. Invariant: memory does not grow with the size of a file.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, BinaryIO, Literal, cast

from services.data.raw.json_array import json_array
from services.data.raw.json_lines import BOM, json_lines
from services.data.raw.locations import open_location
from services.data.raw.places import RawRow, Unreadable
from services.data.raw.streams import Chunks, packing_of, seekable, unpacked
from services.data.raw.tables import arrow_rows, parquet_rows
from services.data.raw.trees import SourceFile
from shared.errors import DataError

FileFormat = Literal["jsonl", "json", "parquet", "arrow_file", "arrow_stream"]
_MAGIC: tuple[tuple[bytes, FileFormat], ...] = (
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow_file"),
    (b"\xff\xff\xff\xff", "arrow_stream"),
)
_LONGEST_MARGIN_BYTES = 2**20


def iter_raw_rows(
    location: str, format_: str = "auto"
) -> Generator[RawRow | Unreadable, None, None]:
    """Rows of all files of a location, in order; `format_` as in data.format.

    Raises DataError for what is missing or no data, and what an object store raises.
    """
    with open_location(location, format_) as files:
        for file in files:
            yield from _file_rows(file, format_)


def _file_rows(file: SourceFile, format_: str) -> Iterator[RawRow | Unreadable]:
    with file.open() as handle:
        packing = packing_of(file, handle)
        chunks = unpacked(file, handle, packing)
        head, chunks = _peek(chunks)
        found = _format_of(file, head, format_)
        if found is None:
            if chunks.cut is not None:
                raise DataError(f"{file.name}: {chunks.cut}; it holds no rows")
        elif found == "jsonl":
            yield from json_lines(chunks)
        elif found == "json":
            yield from json_array(chunks)
        elif packing is None:
            handle.seek(0)
            yield from _table_rows(file, handle, found)
        else:
            with seekable(file, chunks) as copy:
                yield from _table_rows(file, cast(BinaryIO, copy), found)


def _table_rows(
    file: SourceFile, handle: BinaryIO, found: FileFormat
) -> Iterator[RawRow | Unreadable]:
    if found == "parquet":
        return parquet_rows(file, handle)
    return arrow_rows(file, handle, is_stream=found == "arrow_stream")


def _peek(chunks: Chunks) -> tuple[bytes, Chunks]:
    """The first bytes that tell a format, without a byte order mark, and all chunks again."""
    source = iter(chunks)
    taken: list[bytes] = []
    head = b""
    for chunk in source:
        taken.append(chunk)
        head = b"".join(taken).removeprefix(BOM)
        if len(head.lstrip()) >= 8 or len(head) > _LONGEST_MARGIN_BYTES:
            break
    chunks.prepend(taken, source)
    return head, chunks


def _format_of(file: SourceFile, head: bytes, wanted: str) -> FileFormat | None:
    """The format of a file that begins with `head`; None for one without content."""
    text = head.lstrip()
    if not text:
        return None
    found: Any = next((name for magic, name in _MAGIC if head.startswith(magic)), None)
    if found is None:
        _refuse_other_content(file, head)
        found = "json" if text.startswith(b"[") else "jsonl"
        if wanted == "jsonl":
            found = "jsonl"
    kind = str(found).split("_")[0]
    expected = "arrow" if wanted == "datasets" else wanted
    if expected not in ("auto", kind):
        raise DataError(
            f"{file.name} is {kind} by its content, but data.format is {wanted!r}: correct "
            "data.format, or leave it out"
        )
    return cast(FileFormat, found)


def _refuse_other_content(file: SourceFile, head: bytes) -> None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{file.name} is UTF-16 text: convert it to UTF-8")
    if head.startswith(b"FEA1"):
        raise DataError(f"{file.name} is Feather version 1: write it again as version 2")
    if b"\0" in head[:512]:
        raise DataError(
            f"{file.name} is no text and no table that is read (JSONL, a JSON array, Parquet, "
            "Arrow, Feather, each also packed with gzip or zstd)"
        )
