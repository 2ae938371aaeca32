"""The trainer's own buffer: micro-batches arrive in any order and leave in the plan's.

Invariants: an item leaves exactly once, strictly in id order, without gaps; a second copy and
everything below the position is dropped. The batcher dispatches at most a window ahead of the
position, so the buffer is bounded by the window and `offer` never has to wait.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    @property
    def num_bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Intake(Generic[T]):
    """Buffered items by micro-batch id; `position` is the next id to leave."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.num_bytes = 0
        self.num_dropped = 0
        self._items: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._items)

    def wants(self, micro_batch_id: int) -> bool:
        """Whether this micro-batch is neither applied nor here already; counts what is not."""
        if micro_batch_id < self.position or micro_batch_id in self._items:
            self.num_dropped += 1
            return False
        return True

    def offer(self, micro_batch_id: int, item: T) -> bool:
        """Keep an item unless it is a second copy; True when it was kept."""
        if not self.wants(micro_batch_id):
            return False
        self._items[micro_batch_id] = item
        self.num_bytes += item.num_bytes
        return True

    @property
    def ready(self) -> bool:
        """Whether the next micro-batch in order is here."""
        return self.position in self._items

    def take(self) -> T:
        """The next item in order; call only when `ready`."""
        item = self._items.pop(self.position)
        self.position += 1
        self.num_bytes -= item.num_bytes
        return item
