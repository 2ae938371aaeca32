"""Samples of sealed segments by sample id, read from the shards when a micro-batch needs them."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.data.shards import ShardReader

_OPEN_SHARDS = 64


@dataclass(frozen=True)
class _Part:
    path: Path
    num_bytes: int
    rows: Sequence[int]


class SampleStore:
    """Sample ids count the rows of the added shards, in order."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._first_ids: list[int] = []
        self._open: OrderedDict[int, ShardReader] = OrderedDict()
        self.num_samples = 0

    @property
    def num_segments(self) -> int:
        return len(self._parts)

    def add(self, path: Path, num_bytes: int, rows: Sequence[int] | None = None) -> list[int]:
        """Append a shard, or some of its rows; returns the lengths of its samples in tokens."""
        reader = ShardReader(path, num_bytes=num_bytes)
        lengths = reader.lengths()
        rows = range(len(reader)) if rows is None else list(rows)
        self._first_ids.append(self.num_samples)
        self._parts.append(_Part(path, num_bytes, rows))
        self.num_samples += len(rows)
        return [lengths[row] for row in rows]

    def lengths(self, segment: int) -> list[int]:
        """Tokens of each sample of a segment."""
        lengths = self._reader(segment).lengths()
        return [lengths[row] for row in self._parts[segment].rows]

    def tokens(self, sample_ids: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """input_ids int64 [num_tokens] and loss_mask uint8 [num_tokens], samples end to end."""
        pairs = [self._sample(one) for one in sample_ids]
        return np.concatenate([ids for ids, _ in pairs]), np.concatenate([m for _, m in pairs])

    def _sample(self, sample_id: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        segment = bisect.bisect_right(self._first_ids, sample_id) - 1
        # Segments without rows share their first id with the next one; bisect picks the last.
        row = self._parts[segment].rows[sample_id - self._first_ids[segment]]
        return self._reader(segment).tokens(row)

    def _reader(self, segment: int) -> ShardReader:
        reader = self._open.pop(segment, None)
        if reader is None:
            part = self._parts[segment]
            reader = ShardReader(part.path, num_bytes=part.num_bytes)
        self._open[segment] = reader
        while len(self._open) > _OPEN_SHARDS:
            self._open.popitem(last=False)
        return reader
