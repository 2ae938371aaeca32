"""The target_forward loop.

    batcher --MicroBatch--> [take] -> queue(1) -> [compute, a thread] -> queue(1) -> [deliver]
                                                    --HiddenStates--> drafter_trainer

`take` waits for micro-batches and gives their credit back when `compute` takes them up, so the
credit is the prefetch. `compute` waits for `take`, and for room towards `deliver`; `deliver` waits
for the trainer's credit, so a slow trainer stops the chain up to the batcher's dispatch.

Invariants: the worker keeps no state. Whatever it holds when it dies is dispatched again by the
batcher. What the trainer has not taken when its link breaks is sent again on the next link, since
the batcher, which sees both ends alive, would not: the trainer drops a second copy. Draining gives
everything back by leaving.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from services.links import Channel, LinkLimits, Received
from services.target_models.drafter_shape import drafter_config
from services.target_models.frames import tensor_copy, tensor_frame
from shared.api.workers import QueueReport
from shared.errors import IntegrityError, LinkError
from shared.messages import HiddenStates, MicroBatch
from shared.states import Role, WorkerState
from workers.runtime import WorkerContext
from workers.runtime.dialing import dial_peer, next_message, until_closed
from workers.runtime.target import checked_target
from workers.target_forward.forward import ForwardResult, TargetForward

logger = logging.getLogger(__name__)
PREFETCH_MESSAGES = 2


@dataclass(frozen=True)
class Work:
    """A micro-batch with its own copies of the tensors."""

    micro_batch: MicroBatch
    input_ids: Tensor
    loss_mask: Tensor

    @property
    def num_bytes(self) -> int:
        return self.input_ids.nbytes + self.loss_mask.nbytes


@dataclass(frozen=True)
class Result:
    work: Work
    forward: ForwardResult


async def main(context: WorkerContext) -> None:
    """Serve until draining is asked. Raises TargetModelError, DataError, LinkError."""
    config = context.config
    if config.target_forward.num_threads is not None:
        torch.set_num_threads(config.target_forward.num_threads)
    folder = await checked_target(context)
    shape = drafter_config(config, folder)
    forward = await asyncio.to_thread(
        TargetForward,
        folder,
        shape.target_layer_ids,
        dtype=config.target.dtype,
        device=context.device,
    )
    loops = TargetForwardLoops(context, forward)
    context.add_queue("batches", loops.queue_report)
    context.set_state(WorkerState.RUNNING)
    context.milestone(f"target loaded on {forward.device}; layers {forward.target_layer_ids}")
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(loops.take(), name="take"),
            group.create_task(loops.compute(), name="compute"),
            group.create_task(loops.deliver(), name="deliver"),
        ]
        await context.draining.wait()
        for task in tasks:
            task.cancel()


class TargetForwardLoops:
    """The three loops and the queues between them."""

    def __init__(self, context: WorkerContext, forward: TargetForward) -> None:
        self._context = context
        self._forward = forward
        self._work: asyncio.Queue[Work] = asyncio.Queue(1)
        self._work_bytes = 0
        self._results: asyncio.Queue[Result] = asyncio.Queue(1)
        # At most the trainer's credit, in messages and in bytes.
        self._unreleased: deque[Result] = deque()

    def queue_report(self) -> QueueReport:
        """Micro-batches that wait here for the target."""
        return QueueReport(
            name="batches",
            depth=self._work.qsize(),
            capacity=self._work.maxsize,
            bytes=self._work_bytes,
            capacity_bytes=self._context.config.links.max_bytes,
        )

    async def take(self) -> None:
        """Receive micro-batches, from whichever incarnation of the batcher lives."""
        limits = LinkLimits(PREFETCH_MESSAGES, self._context.config.links.max_bytes)
        while True:
            channel = await dial_peer(self._context, Role.BATCHER, "batches", limits)
            try:
                while True:
                    with await next_message(channel) as received:
                        work = _work_of(received)
                        await self._work.put(work)
                        self._work_bytes = work.num_bytes
            except LinkError as error:
                logger.info("link to the batcher ended: %s", error)
            finally:
                await channel.close()

    async def compute(self) -> None:
        """The forward passes, one at a time, in a thread."""
        context = self._context
        while True:
            await context.wait_while_paused()
            with context.meter.waiting_for(Role.BATCHER):
                work = await self._work.get()
                self._work_bytes = 0
            micro_batch = work.micro_batch
            with context.meter.busy():
                result = await asyncio.to_thread(
                    self._forward.run,
                    work.input_ids,
                    micro_batch.lengths,
                    micro_batch.padded_length,
                )
            context.meter.count_tokens(sum(micro_batch.lengths))
            with context.meter.waiting_for(Role.DRAFTER_TRAINER):
                await self._results.put(Result(work, result))

    async def deliver(self) -> None:
        """Send hidden states to whichever incarnation of the trainer lives."""
        links = self._context.config.links
        limits = LinkLimits(links.max_messages, links.max_bytes)
        while True:
            channel = await dial_peer(self._context, Role.DRAFTER_TRAINER, "hidden_states", limits)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(until_closed(channel))
                    group.create_task(self._send_results(channel))
            except* LinkError as error:
                logger.info("link to the trainer ended: %s", error.exceptions[0])
            finally:
                await channel.close()

    async def _send_results(self, channel: Channel) -> None:
        for result in list(self._unreleased):
            await self._send(channel, result)
        while True:
            result = await self._results.get()
            self._unreleased.append(result)
            await self._send(channel, result)
            while len(self._unreleased) > channel.stats().depth:
                self._unreleased.popleft()

    async def _send(self, channel: Channel, result: Result) -> None:
        micro_batch, forward = result.work.micro_batch, result.forward
        bad = [micro_batch.sample_ids[row] for row in forward.nonfinite_rows]
        if bad:
            logger.warning("hidden states of samples %s are not finite; they carry no weight", bad)
        message = HiddenStates(
            micro_batch=micro_batch,
            target_layer_ids=self._forward.target_layer_ids,
            nonfinite_sample_ids=bad,
            forward_s=forward.forward_s,
        )
        frames = [
            tensor_frame("target_hidden_states", forward.target_hidden_states),
            tensor_frame("input_ids", result.work.input_ids),
            tensor_frame("loss_mask", result.work.loss_mask),
        ]
        await channel.send(message, frames)


def _work_of(received: Received) -> Work:
    """A micro-batch with copies of its frames, so that the link may reuse their memory."""
    micro_batch = received.payload
    if not isinstance(micro_batch, MicroBatch):
        raise IntegrityError(
            f"link 'batches' carried a {type(micro_batch).__name__}; it takes micro-batches only"
        )
    missing = {"input_ids", "loss_mask"} - set(received.frames)
    if missing:
        raise IntegrityError(
            f"micro-batch {micro_batch.micro_batch_id} came without {', '.join(sorted(missing))}"
        )
    input_ids, loss_mask = (tensor_copy(received.frames[n]) for n in ("input_ids", "loss_mask"))
    return Work(micro_batch, input_ids, loss_mask)
