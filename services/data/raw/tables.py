"""Parquet, Arrow and Feather files row by row: one record batch, or a part of it, at a time.

A field of a struct that is null counts as absent, since a table cannot leave a field out; columns
of a row stay as they are. Local Arrow files are mapped, so their pages are not anonymous memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from services.data.raw.places import Place, RawRow, Unreadable
from services.data.raw.trees import SourceFile
from shared.errors import DataError

# Rows become Python objects, several times their size, so few bytes of them at once.
_PART_BYTES = 2 * 2**20
_MAX_PART_ROWS = 1024
_READ_BYTES = 2**20
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def parquet_rows(file: SourceFile, handle: IO[bytes]) -> Iterator[RawRow | Unreadable]:
    """Rows of an open Parquet file."""

    def batches() -> Iterator[pa.RecordBatch]:
        # Without pre-buffering, pages are read as they are needed and not a row group at once.
        with pq.ParquetFile(handle, pre_buffer=False, buffer_size=_READ_BYTES) as table:
            for at in range(table.num_row_groups):
                facts = table.metadata.row_group(at)
                rows = _rows_of_a_part(facts.total_byte_size, facts.num_rows)
                yield from table.iter_batches(batch_size=rows, row_groups=[at], use_threads=False)

    return _rows(file.name, "Parquet", batches)


def arrow_rows(
    file: SourceFile, handle: BinaryIO, *, is_stream: bool
) -> Iterator[RawRow | Unreadable]:
    """Rows of an Arrow IPC file (Feather, too) or, with `is_stream`, of an Arrow IPC stream."""

    def batches() -> Iterator[pa.RecordBatch]:
        if is_stream:
            handle.seek(-len(_END_OF_STREAM), 2)
            ending = handle.read(len(_END_OF_STREAM))
            handle.seek(0)
            with _source(file, handle) as source, pa.ipc.open_stream(source) as stream:
                yield from stream
            if ending != _END_OF_STREAM:
                raise pa.ArrowInvalid("the stream has no end mark, so it may be cut off")
            return
        with _source(file, handle) as source, pa.ipc.open_file(source) as table:
            for at in range(table.num_record_batches):
                yield table.get_batch(at)

    return _rows(file.name, "Arrow", batches)


def _source(file: SourceFile, handle: BinaryIO) -> Any:
    is_plain = file.path is not None and str(getattr(handle, "name", "")) == str(file.path)
    return pa.memory_map(str(file.path)) if is_plain else pa.PythonFile(handle, "r")


def _rows(
    name: str, kind: str, batches: Callable[[], Iterator[pa.RecordBatch]]
) -> Iterator[RawRow | Unreadable]:
    number = 0
    try:
        for batch in batches():
            for row in _values(batch):
                number += 1
                yield RawRow(Place(name, "row", number), row)
    except (pa.ArrowException, OSError) as error:
        cause = str(error).strip().split("\n")[0][:300]
        if number == 0:
            raise DataError(f"{name} cannot be read as {kind}: {cause}; fetch it again") from None
        yield Unreadable(
            Place(name, "row", number + 1), f"the {kind} file is damaged from here on: {cause}"
        )


def _values(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    step = _rows_of_a_part(batch.nbytes, batch.num_rows)
    names = batch.schema.names
    nested = [at for at, field in enumerate(batch.schema) if pa.types.is_nested(field.type)]
    for first in range(0, batch.num_rows, step):
        columns = [column.to_pylist() for column in batch.slice(first, step).columns]
        for at in nested:
            columns[at] = [without_nulls(value) for value in columns[at]]
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def without_nulls(value: Any) -> Any:
    """`value` without the null fields of its structs, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_nulls(one) for one in value]
    return value


def _rows_of_a_part(num_bytes: int, num_rows: int) -> int:
    each = max(1, num_bytes // max(1, num_rows))
    return max(1, min(_MAX_PART_ROWS, _PART_BYTES // each))
