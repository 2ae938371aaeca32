"""The dispatch desk: plan, dispatcher and samples behind one notifier.

The loops change it (a segment sealed, gates opened, the trainer moved, a worker gone) and each
change wakes whoever waits for a micro-batch. All of it belongs to the event loop.
"""

from __future__ import annotations

import asyncio

from services.links import Frame
from shared.messages import MicroBatch, TrainerPosition
from workers.batcher.dispatch import Dispatcher
from workers.batcher.plan import BatchPlan, PlannedMicroBatch
from workers.batcher.store import SampleStore


class DispatchDesk:
    """What is due, and for whom. `hold_until_complete` is the synchronous mode."""

    def __init__(
        self, run_id: str, *, bytes_per_token: int, hold_until_complete: bool = False
    ) -> None:
        self.store = SampleStore()
        self.plan: BatchPlan | None = None
        self.dispatcher = Dispatcher(self._num_bytes)
        self.gates_open = False
        self._run_id = run_id
        self._bytes_per_token = bytes_per_token
        self._hold_until_complete = hold_until_complete
        self._changed = asyncio.Event()

    def start_plan(self, plan: BatchPlan) -> None:
        """The plan is known, with the segments that `store` holds already."""
        for segment in range(self.store.num_segments):
            plan.add_segment(self.store.lengths(segment))
        self.plan = plan
        self.notify()

    def notify(self) -> None:
        """Something changed: whoever waits looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Returns at the next change."""
        await self._changed.wait()

    @property
    def num_ready(self) -> int:
        """Micro-batches 0 .. num_ready - 1 may go out as far as data and gates are concerned."""
        if self.plan is None or not self.gates_open:
            return 0
        if self._hold_until_complete and not self.plan.complete:
            return 0
        return self.plan.num_final

    @property
    def lacks_data(self) -> bool:
        """Whether the next micro-batch waits for samples, not for the trainer."""
        return self.dispatcher.next_new >= self.num_ready

    def take_next(self, incarnation: str) -> PlannedMicroBatch | None:
        """The next due micro-batch, which `incarnation` has from now on; None when none is."""
        due = self.dispatcher.next_id(self.num_ready)
        if due is None:
            return None
        self.dispatcher.take(due, incarnation)
        assert self.plan is not None
        return self.plan.micro_batch(due)

    def move_trainer(self, position: TrainerPosition) -> None:
        """Take over what the trainer says of itself."""
        self.dispatcher.trainer_position(
            position.next_micro_batch_id,
            window_messages=position.window_messages,
            window_bytes=position.window_bytes,
            reset=position.reset,
            finished=position.finished,
        )
        self.notify()

    def lose_worker(self, incarnation: str) -> list[int]:
        """Its micro-batches are due again."""
        again = self.dispatcher.worker_gone(incarnation)
        if again:
            self.notify()
        return again

    def message(self, planned: PlannedMicroBatch) -> tuple[MicroBatch, list[Frame]]:
        """The micro-batch as it travels."""
        input_ids, loss_mask = self.store.tokens(planned.sample_ids)
        payload = MicroBatch(
            run_id=self._run_id,
            micro_batch_id=planned.micro_batch_id,
            epoch=planned.epoch,
            step=planned.step,
            index_in_step=planned.index_in_step,
            num_in_step=planned.num_in_step,
            steps_total=planned.steps_total,
            last=planned.last,
            sample_ids=list(planned.sample_ids),
            lengths=list(planned.lengths),
            padded_length=planned.padded_length,
        )
        frames = [
            Frame("input_ids", "int64", input_ids.shape, input_ids.data),
            Frame("loss_mask", "uint8", loss_mask.shape, loss_mask.data),
        ]
        return payload, frames

    def _num_bytes(self, micro_batch_id: int) -> int:
        """Bytes of hidden states that the micro-batch will occupy at the trainer."""
        assert self.plan is not None
        return sum(self.plan.micro_batch(micro_batch_id).lengths) * self._bytes_per_token
