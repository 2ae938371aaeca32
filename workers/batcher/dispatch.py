"""Which micro-batch goes out next: window, outstanding ones, and what must go out again.

    plan.num_final --> Dispatcher --next_id--> a target_forward worker --> trainer
                           ^---------- TrainerPosition (applied up to, window) ------'

A pure state machine without I/O or clock. Invariants:

- nothing is dispatched before the trainer has said where it stands, nor past its window, so the
  trainer has room for whatever arrives. The micro-batch it waits for may always go, however large.
- every id in [position, next_new) is outstanding with exactly one worker, or lost and due again.
  So each id reaches the trainer as long as a worker lives; a second copy is possible, and the
  trainer drops it.
- what goes out is always the lowest id that is due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Dispatcher:
    """State of dispatch. `num_bytes(id)` is what micro-batch `id` occupies at the trainer."""

    num_bytes: Callable[[int], int]
    position: int = 0
    finished: bool = False
    window_messages: int = 0  # 0: the trainer has not said anything yet
    window_bytes: int = 0
    next_new: int = 0
    outstanding: dict[int, str] = field(default_factory=dict)  # id -> incarnation of its worker
    lost: set[int] = field(default_factory=set)
    _bytes_ahead: int = 0  # of ids in [position, next_new)

    def trainer_position(
        self,
        next_micro_batch_id: int,
        *,
        window_messages: int,
        window_bytes: int,
        reset: bool,
        finished: bool = False,
    ) -> None:
        """The trainer has applied everything below `next_micro_batch_id`.

        With `reset` it holds nothing beyond, so all that was sent is due again. An older position
        without reset (messages of a channel that is gone) changes nothing.
        """
        self.window_messages, self.window_bytes = window_messages, window_bytes
        self.finished = finished
        if reset:
            self.position = self.next_new = next_micro_batch_id
            self.outstanding.clear()
            self.lost.clear()
            self._bytes_ahead = 0
            return
        for applied in range(self.position, min(next_micro_batch_id, self.next_new)):
            self.outstanding.pop(applied, None)
            self.lost.discard(applied)
            self._bytes_ahead -= self.num_bytes(applied)
        self.position = max(self.position, next_micro_batch_id)
        self.next_new = max(self.next_new, self.position)

    def worker_gone(self, incarnation: str) -> list[int]:
        """A worker died or started anew: what it had is due again. Returns those ids."""
        again = sorted(one for one, worker in self.outstanding.items() if worker == incarnation)
        for one in again:
            del self.outstanding[one]
        self.lost.update(again)
        return again

    def next_id(self, num_final: int) -> int | None:
        """The lowest id that is due and fits, without taking it."""
        if self.finished or not self.window_messages:
            return None
        if self.lost:
            return min(self.lost)
        candidate = self.next_new
        if candidate >= num_final:
            return None
        if candidate == self.position:
            return candidate
        if candidate >= self.position + self.window_messages:
            return None
        if self._bytes_ahead + self.num_bytes(candidate) > self.window_bytes:
            return None
        return candidate

    def take(self, micro_batch_id: int, incarnation: str) -> None:
        """Note that `micro_batch_id` (from `next_id`) goes to this worker."""
        if micro_batch_id in self.lost:
            self.lost.remove(micro_batch_id)
        else:
            assert micro_batch_id == self.next_new, "new micro-batches go out in order"
            self.next_new += 1
            self._bytes_ahead += self.num_bytes(micro_batch_id)
        self.outstanding[micro_batch_id] = incarnation
