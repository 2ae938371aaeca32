"""Prompts of a run on disk: written once in order, then read one at a time by position.

A source may be packed, remote or gone tomorrow, so the rows that passed the checks are kept in a
file without a name beside the run. In memory is only the position of the rows a view is of.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, overload

import msgspec
import numpy as np
import numpy.typing as npt

from services.data.mapped import MappedArray
from services.data.prompts import PromptRow
from services.files import disk_faults
from shared.errors import IntegrityError

Positions = npt.NDArray[np.uint32]

_encoder = msgspec.msgpack.Encoder(enc_hook=str)
_decoder = msgspec.msgpack.Decoder(PromptRow)


class PromptSpool:
    """Rows in the order of their index. Close it when no view is read any more."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._ends = MappedArray("Q", folder)
        self._num_bytes = 0

    def __len__(self) -> int:
        return self._ends.size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._ends.close()

    def add(self, row: PromptRow) -> None:
        """Append the next row; its index must be the number of rows so far."""
        assert row.index == len(self), "rows come in the order of their index"
        try:
            data = _encoder.encode(row)
        except (OverflowError, UnicodeEncodeError):
            data = _encoder.encode(msgspec.structs.replace(row, extra=_storable(row.extra)))
        with disk_faults(self._folder or tempfile.gettempdir()):
            self._file.write(data)
        self._num_bytes += len(data)
        self._ends.append(self._num_bytes)

    def finish(self) -> None:
        """Make everything that was added readable."""
        with disk_faults(self._folder or tempfile.gettempdir()):
            self._file.flush()

    def read(self, position: int) -> PromptRow:
        """The row at a position, after `finish`."""
        end = self._ends.cells[position]
        start = self._ends.cells[position - 1] if position else 0
        data = os.pread(self._file.fileno(), end - start, start)
        if len(data) != end - start:
            raise IntegrityError(f"the spooled prompts end at byte {start + len(data)} of {end}")
        return _decoder.decode(data)


class PromptRows(Sequence[PromptRow]):
    """Some rows of a spool, in order, each read when it is asked for."""

    def __init__(self, spool: PromptSpool, positions: Positions) -> None:
        self._spool, self._positions = spool, positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, at: int) -> PromptRow: ...
    @overload
    def __getitem__(self, at: slice) -> PromptRows: ...
    def __getitem__(self, at: int | slice) -> PromptRow | PromptRows:
        if isinstance(at, slice):
            return PromptRows(self._spool, self._positions[at])
        return self._spool.read(int(self._positions[at]))

    def __iter__(self) -> Iterator[PromptRow]:
        return (self._spool.read(int(position)) for position in self._positions)

    def without(self, indices: Collection[int]) -> PromptRows:
        """The rows whose index is not among `indices`."""
        dropped = np.fromiter(indices, np.uint32, len(indices))
        return PromptRows(self._spool, self._positions[~np.isin(self._positions, dropped)])


def _storable(extra: dict[str, Any]) -> dict[str, Any]:
    """Columns with numbers or texts that only JSON text can carry, as such."""
    return {key: json.dumps(value, default=str) for key, value in extra.items()}
