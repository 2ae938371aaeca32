"""The drafter_trainer loop.

    target_forward --HiddenStates--> [receive, one a channel] -> intake
                                                                   | in plan order
                        batcher <--TrainerPosition-- [positions] <- [apply, a thread] -> recorder

`receive` copies a message into the intake and gives its credit back at once; the intake is bounded
because the batcher dispatches at most a window ahead of the position. `apply` waits for the next
micro-batch in order, never for a particular worker. `positions` tells the batcher the position
after every applied micro-batch, with reset on every new link: the batcher dispatches again from
there, and the intake drops second copies.

Invariants: micro-batches are applied exactly once between two checkpoints, strictly in order. A
restart stands where the newest complete checkpoint stands, and the steps after it are the same
steps. Draining saves the last finished step; a step begun is replayed.
"""

from __future__ import annotations

import asyncio
import logging

import torch

from services.links import Channel, LinkLimits, Listener, Received
from services.target_models.drafter_shape import drafter_config
from shared.api.workers import QueueReport
from shared.errors import LinkError
from shared.messages import TrainerPosition
from shared.states import Role, WorkerState
from workers.drafter_trainer.checkpoints import CheckpointStore
from workers.drafter_trainer.intake import Intake
from workers.drafter_trainer.items import TrainingItem, training_item
from workers.drafter_trainer.recorder import Recorder
from workers.drafter_trainer.training import DrafterTraining
from workers.runtime import WorkerContext
from workers.runtime.dialing import dial_peer, next_message, until_closed
from workers.runtime.target import checked_target

logger = logging.getLogger(__name__)
_POSITION_LIMITS = LinkLimits(max_messages=4, max_bytes=2**20)


async def main(context: WorkerContext) -> None:
    """Train until the plan ends, then serve until draining is asked."""
    config = context.config
    if config.trainer.num_threads is not None:
        torch.set_num_threads(config.trainer.num_threads)
    folder = await checked_target(context)
    shape = drafter_config(config, folder)
    training = await asyncio.to_thread(
        DrafterTraining, config, shape, folder, device=context.device
    )
    store = CheckpointStore(context.folder, config.trainer.keep_checkpoints)
    recorder = Recorder(context, training, store)
    await recorder.resume()
    listener = await Listener.bind(
        "hidden_states",
        context.identity,
        host=config.links.host,
        limits=LinkLimits(config.links.max_messages, config.links.max_bytes),
        security=context.security,
        plane=config.links.plane,
    )
    try:
        context.endpoints["hidden_states"] = listener.endpoint
        loops = TrainerLoops(context, training, recorder, listener)
        context.add_queue("hidden_states", loops.queue_report)
        context.set_state(WorkerState.RUNNING)
        await loops.run()
    finally:
        await listener.close()
        await recorder.close()


class TrainerLoops:
    """The loops of one trainer and what they share."""

    def __init__(
        self,
        context: WorkerContext,
        training: DrafterTraining,
        recorder: Recorder,
        listener: Listener,
    ) -> None:
        links = context.config.links
        is_synchronous = context.config.train.mode == "synchronous"
        self._context = context
        self._training = training
        self._recorder = recorder
        self._listener = listener
        self._window_messages = 1 if is_synchronous else links.max_messages
        self._window_bytes = links.max_bytes
        self._intake: Intake[TrainingItem] = Intake(training.next_micro_batch_id)
        self._arrived = asyncio.Event()
        self._moved = asyncio.Event()

    def queue_report(self) -> QueueReport:
        return QueueReport(
            name="hidden_states",
            depth=len(self._intake),
            capacity=self._window_messages,
            bytes=self._intake.num_bytes,
            capacity_bytes=self._window_bytes,
        )

    async def run(self) -> None:
        """Until draining is asked; then the last finished step is on the disk."""
        context = self._context
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._accept(), name="accept"),
                group.create_task(self._positions(), name="positions"),
            ]
            apply = group.create_task(self._apply(), name="apply")
            await context.draining.wait()
            self._arrived.set()
            await apply
            for task in tasks:
                task.cancel()
        await self._recorder.save_if_newer()

    async def _accept(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                channel = await self._listener.accept()
                group.create_task(self._receive(channel), name=f"from {channel.peer_worker_id}")

    async def _receive(self, channel: Channel) -> None:
        """Move what one target_forward sends into the intake, until its link ends."""
        try:
            while True:
                with await next_message(channel) as received:
                    self._keep(received)
        except LinkError as error:
            logger.info("link from %s ended: %s", channel.peer_worker_id, error)
        finally:
            await channel.close()

    def _keep(self, received: Received) -> None:
        """Copy a message into the intake, unless it is there already."""
        item = training_item(received, self._training.shape)
        if self._intake.wants(item.micro_batch_id):
            self._intake.offer(item.micro_batch_id, item.copied())
            if self._intake.ready:
                self._arrived.set()

    async def _apply(self) -> None:
        """Apply micro-batches in order until the plan ends or draining is asked."""
        context, training, intake = self._context, self._training, self._intake
        while not training.is_finished:
            await context.wait_while_paused()
            with context.meter.waiting_for(Role.TARGET_FORWARD):
                while not intake.ready and not context.draining.is_set():
                    self._arrived.clear()
                    await self._arrived.wait()
            if context.draining.is_set():
                return
            item = intake.take()
            with context.meter.busy():
                step = await asyncio.to_thread(training.apply, item)
            context.meter.count_tokens(item.num_tokens)
            self._moved.set()
            context.progress["next_micro_batch_id"] = intake.position
            if step is not None:
                await self._recorder.take_step(step)
        await self._recorder.finish()
        self._moved.set()

    async def _positions(self) -> None:
        """Tell the batcher where the trainer stands, whichever incarnation of it lives."""
        while True:
            channel = await dial_peer(self._context, Role.BATCHER, "positions", _POSITION_LIMITS)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(until_closed(channel))
                    group.create_task(self._send_positions(channel))
            except* LinkError as group_error:
                logger.info("link to the batcher ended: %s", group_error.exceptions[0])
            finally:
                await channel.close()

    async def _send_positions(self, channel: Channel) -> None:
        is_reset = True
        while True:
            self._moved.clear()
            await channel.send(
                TrainerPosition(
                    next_micro_batch_id=self._intake.position,
                    window_messages=self._window_messages,
                    window_bytes=self._window_bytes,
                    reset=is_reset,
                    finished=self._recorder.is_finished,
                )
            )
            is_reset = False
            await self._moved.wait()
