"""Places of messages in a shared-memory segment, as a pure object.

First fit from the start, so that a segment touches no more memory than its peak demand; places
that are given back join their free neighbours.
"""

from __future__ import annotations

ALIGNMENT = 4096  # a page, so that places can be page-locked and copied to a GPU on their own


def aligned(num_bytes: int) -> int:
    """`num_bytes` rounded up to whole pages, at least one."""
    return max(1, -(-num_bytes // ALIGNMENT)) * ALIGNMENT


class Arena:
    """Free and taken places of `capacity_bytes`. Invariant: they tile it without overlap."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = aligned(capacity_bytes)
        self.high_water_bytes = 0
        self._free: list[tuple[int, int]] = [(0, self.capacity_bytes)]  # (offset, size), sorted
        self._taken: dict[int, int] = {}

    @property
    def taken_bytes(self) -> int:
        return sum(self._taken.values())

    def allocate(self, num_bytes: int) -> int | None:
        """Offset of a place of at least `num_bytes`, or None while no hole is large enough."""
        size = aligned(num_bytes)
        for index, (offset, hole) in enumerate(self._free):
            if hole >= size:
                if hole == size:
                    del self._free[index]
                else:
                    self._free[index] = (offset + size, hole - size)
                self._taken[offset] = size
                self.high_water_bytes = max(self.high_water_bytes, offset + size)
                return offset
        return None

    def free(self, offset: int) -> None:
        """Give the place at `offset` back; it must be taken."""
        size = self._taken.pop(offset)
        holes = sorted([*self._free, (offset, size)])
        joined: list[tuple[int, int]] = []
        for start, length in holes:
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((start, length))
        self._free = joined
