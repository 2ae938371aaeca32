"""Arrays and a set of digests that live in unlinked files, mapped into memory.

Counting a file of any size must not fill memory: what is kept of each row lies in pages that the
system may write out, not in anonymous memory. The files have no name, so nothing is left behind
when a process is killed. Space is reserved before it is used: a full disk is a DiskFullError.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from services.files import disk_faults

DIGEST_BYTES = 32
_FIRST_BYTES = 2**16
_CODES: dict[str, tuple[int, type[np.unsignedinteger[Any]]]] = {
    "B": (1, np.uint8),
    "I": (4, np.uint32),
    "Q": (8, np.uint64),
}


class MappedArray:
    """A growing array of unsigned numbers: bytes 'B', 32 bits 'I', 64 bits 'Q'.

    `cells` are all reserved numbers as a memoryview (zero where none was written); it is replaced
    when the array grows, so it must not be kept.
    """

    def __init__(
        self, code: Literal["B", "I", "Q"], folder: Path | None, capacity: int = 0
    ) -> None:
        self._code, self._folder = code, folder
        self._width, self._dtype = _CODES[code]
        num_bytes = max(_FIRST_BYTES, capacity * self._width)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        try:
            self._reserve(num_bytes)
            self._map = mmap.mmap(self._file.fileno(), num_bytes)
        except BaseException:
            self._file.close()
            raise
        self.cells: memoryview = memoryview(self._map).cast(code)
        self.size = 0

    def append(self, number: int) -> None:
        if self.size == len(self.cells):
            self._grow()
        self.cells[self.size] = number
        self.size += 1

    def extend(self, data: bytes) -> None:
        """Append bytes to an array of bytes."""
        end = self.size + len(data)
        while end > len(self.cells):
            self._grow()
        self.cells[self.size : end] = data
        self.size = end

    def numbers(self) -> npt.NDArray[Any]:
        """A view of what was appended; it must be gone before the array grows or closes."""
        return np.frombuffer(self.cells, self._dtype, self.size)

    def close(self) -> None:
        self.cells.release()
        self._map.close()
        self._file.close()

    def _grow(self) -> None:
        num_bytes = 2 * len(self._map)
        self._reserve(num_bytes)
        self.cells.release()
        self._map.resize(num_bytes)
        self.cells = memoryview(self._map).cast(self._code)

    def _reserve(self, num_bytes: int) -> None:
        with disk_faults(self._folder or tempfile.gettempdir()):
            os.posix_fallocate(self._file.fileno(), 0, num_bytes)


class DigestCounts:
    """How often each SHA-256 was seen. A digest's id is its place in the order of first sight.

    An open-addressed table of ids beside the digests themselves; at most half of it is filled.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._digests = MappedArray("B", folder)
        self._counts = MappedArray("I", folder)
        self._slots = MappedArray("I", folder)  # id + 1, 0 for an empty slot

    def __len__(self) -> int:
        return self._counts.size

    def add(self, digest: bytes) -> int:
        """Count a digest; how often it was seen before."""
        slot = self._slot_of(digest)
        known = self._slots.cells[slot]
        if known:
            seen = self._counts.cells[known - 1]
            self._counts.cells[known - 1] = seen + 1
            return seen
        new = self._counts.size
        self._digests.extend(digest)
        self._counts.append(1)
        self._slots.cells[slot] = new + 1
        if 2 * len(self) > len(self._slots.cells):
            self._rehash()
        return 0

    def id_of(self, digest: bytes) -> int:
        """The id of a digest that was added."""
        known = self._slots.cells[self._slot_of(digest)]
        assert known, "the digest was never added"
        return known - 1

    def digest(self, digest_id: int) -> bytes:
        start = digest_id * DIGEST_BYTES
        return bytes(self._digests.cells[start : start + DIGEST_BYTES])

    def count(self, digest_id: int) -> int:
        return int(self._counts.cells[digest_id])

    def __iter__(self) -> Iterator[bytes]:
        """Each digest once, in order of first sight."""
        return (self.digest(one) for one in range(len(self)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for array in (self._digests, self._counts, self._slots):
            array.close()

    def _slot_of(self, digest: bytes) -> int:
        """The slot that holds the digest, or the empty one where it belongs."""
        slots, digests = self._slots.cells, self._digests.cells
        mask = len(slots) - 1
        slot = int.from_bytes(digest[:8], "little") & mask
        while known := slots[slot]:
            start = (known - 1) * DIGEST_BYTES
            if digests[start : start + DIGEST_BYTES] == digest:
                break
            slot = (slot + 1) & mask
        return slot

    def _rehash(self) -> None:
        old, self._slots = (
            self._slots,
            MappedArray("I", self._folder, capacity=4 * len(self._slots.cells)),
        )
        old.close()
        for digest_id in range(len(self)):
            self._slots.cells[self._slot_of(self.digest(digest_id))] = digest_id + 1
