"""Arrow shards of gated samples.

A shard is an Arrow IPC stream, which `datasets.Dataset.from_file` and
`load_dataset("arrow", ...)` read. Columns: input_ids list<int32>, loss_mask list<uint8>, length
int32, sample_id int64 (position in the data set), prompt_sha256 string, seq int64 (position in the
completions log). Shards appear whole (write, fsync, rename) and never change afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.files import sha256_file, write_file
from shared.errors import DataError, IntegrityError

SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.uint8())),
        ("length", pa.int32()),
        ("sample_id", pa.int64()),
        ("prompt_sha256", pa.string()),
        ("seq", pa.int64()),
    ]
)
_REQUIRED = ("input_ids", "loss_mask")


@dataclass(frozen=True, slots=True)
class Sample:
    """One accepted sample; `input_ids` and `loss_mask` have the same length."""

    seq: int
    prompt_sha256: str
    input_ids: Sequence[int]
    loss_mask: Sequence[int]


def shard_bytes(samples: Sequence[Sample], first_sample_id: int) -> bytes:
    """The shard's content."""
    table = pa.table(
        {
            "input_ids": [np.asarray(one.input_ids, np.int32) for one in samples],
            "loss_mask": [np.asarray(one.loss_mask, np.uint8) for one in samples],
            "length": [len(one.input_ids) for one in samples],
            "sample_id": range(first_sample_id, first_sample_id + len(samples)),
            "prompt_sha256": [one.prompt_sha256 for one in samples],
            "seq": [one.seq for one in samples],
        },
        schema=SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def write_shard(path: Path, samples: Sequence[Sample], first_sample_id: int) -> tuple[str, int]:
    """Write a shard durably; returns its sha256 and size in bytes."""
    data = shard_bytes(samples, first_sample_id)
    write_file(path, data)
    return hashlib.sha256(data).hexdigest(), len(data)


class ShardReader:
    """Random access to the samples of one shard; the file is mapped, not read."""

    def __init__(
        self, path: Path, *, num_bytes: int | None = None, sha256: str | None = None
    ) -> None:
        """DataError when the file is not a shard, IntegrityError when its size or sum is another.

        With `sha256` the whole file is read once; without, nothing but its layout.
        """
        self.path = path
        if not path.is_file():
            raise DataError(f"shard {path} does not exist")
        if num_bytes is not None and path.stat().st_size != num_bytes:
            raise IntegrityError(
                f"shard {path} has {path.stat().st_size} bytes, dataset.json says {num_bytes}"
            )
        if sha256 is not None and (found := sha256_file(path)[1]) != sha256:
            raise IntegrityError(
                f"shard {path} is damaged: its sha256 is {found}, dataset.json says {sha256}"
            )
        try:
            with pa.memory_map(str(path)) as source:
                table = _open(source)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"shard {path} is not an Arrow file: {error}") from error
        missing = [name for name in _REQUIRED if name not in table.column_names]
        if missing:
            raise DataError(
                f"shard {path} has no column {', '.join(missing)}; it has "
                f"{', '.join(table.column_names)}"
            )
        self._table = table.combine_chunks()
        self._ids = _ListColumn(self._table["input_ids"], path, "input_ids")
        self._mask = _ListColumn(self._table["loss_mask"], path, "loss_mask")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def lengths(self) -> list[int]:
        """Tokens of each sample."""
        lengths = self._ids.lengths()
        if lengths != self._mask.lengths():
            raise DataError(f"shard {self.path}: input_ids and loss_mask differ in length")
        return lengths

    def tokens(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """input_ids int64 [length] and loss_mask uint8 [length] of a row."""
        return self._ids.row(row).astype(np.int64), self._mask.row(row).astype(np.uint8)

    def columns(
        self, first: int, last: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """Rows first .. last - 1 as flat input_ids [T], loss_mask [T] and offsets [n + 1].

        DataError when the two columns differ in length.
        """
        ids, offsets = self._ids.rows(first, last)
        mask, mask_offsets = self._mask.rows(first, last)
        if not np.array_equal(offsets, mask_offsets):
            raise DataError(f"shard {self.path}: input_ids and loss_mask differ in length")
        return ids.astype(np.int64), mask != 0, offsets

    def texts(self, name: str, first: int, last: int) -> list[str]:
        """A column of texts, '' in every row where the shard does not have it."""
        if name not in self._table.column_names:
            return [""] * (last - first)
        return [str(one) for one in self._table[name].slice(first, last - first).to_pylist()]

    def sample(self, row: int) -> Sample:
        """A row as a Sample; `seq` and `prompt_sha256` are -1 and '' where the shard has none."""
        ids, mask = self.tokens(row)
        return Sample(
            seq=int(self._cell("seq", row, -1)),
            prompt_sha256=str(self._cell("prompt_sha256", row, "")),
            input_ids=ids.tolist(),
            loss_mask=mask.tolist(),
        )

    def _cell(self, name: str, row: int, otherwise: Any) -> Any:
        if name not in self._table.column_names:
            return otherwise
        return self._table[name][row].as_py()


class _ListColumn:
    """Offsets and values of a list column as numpy views."""

    def __init__(self, column: pa.ChunkedArray, path: Path, name: str) -> None:
        array = column.chunk(0) if column.num_chunks else pa.array([], pa.list_(pa.int32()))
        if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
            raise DataError(f"shard {path}: column {name} holds {array.type}, not lists of numbers")
        if array.null_count or array.values.null_count:
            raise DataError(f"shard {path}: column {name} has empty cells")
        values = array.values
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.uint8())
        if not pa.types.is_integer(values.type):
            raise DataError(f"shard {path}: column {name} holds {values.type}, not whole numbers")
        self._offsets = array.offsets.to_numpy()
        self._values = values.to_numpy()

    def lengths(self) -> list[int]:
        return [int(one) for one in np.diff(self._offsets)]

    def rows(self, first: int, last: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Values of rows first .. last - 1, and where each row begins in them."""
        offsets = self._offsets[first : last + 1].astype(np.int64)
        return self._values[offsets[0] : offsets[-1]], offsets - offsets[0]

    def row(self, row: int) -> NDArray[Any]:
        found: NDArray[Any] = self._values[self._offsets[row] : self._offsets[row + 1]]
        return found


def _open(source: Any) -> Any:
    try:
        return pa.ipc.open_stream(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_file(source).read_all()
