"""A map from 64-bit keys to row numbers, many at a time, in two numpy arrays.

Open addressing with double hashing. 12 bytes a slot and at most three quarters of the slots taken:
a million keys cost 24 MB, where a dict of integers takes over 100. What a lookup answers depends
only on what was added, not on the grouping or order of the calls.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FIRST_SLOTS = 1 << 10
_MOVED_SLOTS = 1 << 18  # at a time, so that growing needs little beside the two tables
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class KeyTable:
    """Keys are hashes or are spread here; rows are 0 .. 2**32 - 2."""

    def __init__(self) -> None:
        self._size = 0
        self._allocate(_FIRST_SLOTS)

    def __len__(self) -> int:
        return self._size

    @property
    def num_bytes(self) -> int:
        return self._keys.nbytes + self._rows.nbytes

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The row of each key, -1 where there is none."""
        found = np.full(len(keys), -1, np.int64)
        if not self._size:
            return found
        at = np.arange(len(keys))
        slots, steps = self._slots(keys)
        while len(at):
            rows = self._rows[slots]
            same = self._keys[slots] == keys
            taken = rows > 0
            hit = (same & taken).nonzero()[0]
            found[at[hit]] = rows[hit].astype(np.int64) - 1
            on = (taken & ~same).nonzero()[0]
            at, keys, steps = at[on], keys[on], steps[on]
            slots = (slots[on] + steps) & self._last
        return found

    def add(self, keys: NDArray[np.uint64], rows: NDArray[np.int64]) -> None:
        """Add keys that differ from each other and are not in the table."""
        self._make_room(len(keys))
        self._size += len(keys)
        self._place(keys, (rows + 1).astype(np.uint32))

    def _place(self, keys: NDArray[np.uint64], marks: NDArray[np.uint32]) -> None:
        slots, steps = self._slots(keys)
        while len(keys):
            free = (self._rows[slots] == 0).nonzero()[0]
            # Several may want the same slot: who reads its own key back has it.
            wanted = slots[free]
            self._keys[wanted] = keys[free]
            won = free[self._keys[wanted] == keys[free]]
            self._rows[slots[won]] = marks[won]
            left = np.ones(len(keys), bool)
            left[won] = False
            on = left.nonzero()[0]
            keys, marks, steps = keys[on], marks[on], steps[on]
            slots = (slots[on] + steps) & self._last

    def _make_room(self, num_more: int) -> None:
        needed = self._size + num_more
        slots = len(self._rows)
        if 4 * needed <= 3 * slots:
            return
        while 4 * needed > 3 * slots:
            slots *= 2
        keys, marks = self._keys, self._rows
        self._allocate(slots)
        for first in range(0, len(marks), _MOVED_SLOTS):
            part = slice(first, first + _MOVED_SLOTS)
            taken = np.flatnonzero(marks[part])
            self._place(keys[part][taken], marks[part][taken])

    def _allocate(self, slots: int) -> None:
        self._keys = np.zeros(slots, np.uint64)
        self._rows = np.zeros(slots, np.uint32)  # row + 1; 0 is an empty slot
        self._last = slots - 1
        self._shift = np.uint64(64 - (slots.bit_length() - 1))

    def _slots(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First slot of each key, and the odd step to the next ones."""
        spread = keys * _SPREAD
        steps = (spread & np.uint64(self._last)) | np.uint64(1)
        return (spread >> self._shift).view(np.int64), steps.view(np.int64)
