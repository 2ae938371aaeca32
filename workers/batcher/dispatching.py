"""The links `batches` and `positions`: micro-batches out, the trainer's position in.

    desk --MicroBatch--> target_forward workers          drafter_trainer --TrainerPosition--> desk

A worker gets its next micro-batch when it has taken the one before into its own queue, so a slow
worker never holds more than it can start on soon. A channel that ends, or a worker that leaves the
list of peers, makes what it had due again. The wait for a due micro-batch is ended by sealed
segments, the gates, the trainer's position and lost workers; the wait for a worker by the worker or
its channel.
"""

from __future__ import annotations

import asyncio
import logging

from services.links import Channel, Listener
from shared.errors import LinkError
from shared.messages import TrainerPosition
from shared.states import Role
from workers.batcher.desk import DispatchDesk
from workers.runtime import WorkerContext

logger = logging.getLogger(__name__)


async def serve_batches(context: WorkerContext, listener: Listener, desk: DispatchDesk) -> None:
    """Serve every target_forward that dials, until cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_watch_peers(context, desk), name="watch peers")
        while True:
            channel = await listener.accept()
            group.create_task(_serve_worker(context, channel, desk), name=f"to {channel.peer}")


async def _serve_worker(context: WorkerContext, channel: Channel, desk: DispatchDesk) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_watch(channel), name="watch")
            group.create_task(_dispatch(context, channel, desk), name="dispatch")
    except* LinkError as errors:
        logger.info("link to %s ended: %s", channel.peer, errors.exceptions[0])
    finally:
        again = desk.lose_worker(channel.peer_incarnation)
        if again:
            logger.info("micro-batches %s of %s go out again", again, channel.peer)
        await channel.close()


async def _dispatch(context: WorkerContext, channel: Channel, desk: DispatchDesk) -> None:
    while True:
        await context.wait_while_paused()
        planned = desk.take_next(channel.peer_incarnation)
        if planned is None:
            awaited = Role.GENERATOR if desk.lacks_data else Role.DRAFTER_TRAINER
            with context.meter.waiting_for(awaited):
                await desk.changed()
            continue
        payload, frames = desk.message(planned)
        with context.meter.waiting_for(Role.TARGET_FORWARD):
            await channel.send(payload, frames)
            await channel.flush()


async def _watch(channel: Channel) -> None:
    """Ends with the channel; nobody sends on it in this direction."""
    while True:
        with await channel.receive() as received:
            name = type(received.payload).__name__
        raise LinkError(f"link 'batches' takes no messages from workers, {name} came")


async def _watch_peers(context: WorkerContext, desk: DispatchDesk) -> None:
    """A worker that the control plane has given up may still have its connection open."""
    known = {peer.incarnation for peer in context.peers(Role.TARGET_FORWARD)}
    while True:
        await context.peers_changed()
        now = {peer.incarnation for peer in context.peers(Role.TARGET_FORWARD)}
        for incarnation in known - now:
            desk.lose_worker(incarnation)
        known = now


async def serve_positions(listener: Listener, desk: DispatchDesk) -> None:
    """Take the trainer's positions from whichever incarnation dials, until cancelled."""
    async with asyncio.TaskGroup() as group:
        while True:
            channel = await listener.accept()
            group.create_task(_take_positions(channel, desk), name=f"from {channel.peer}")


async def _take_positions(channel: Channel, desk: DispatchDesk) -> None:
    try:
        while True:
            with await channel.receive() as received:
                position = received.payload
            if not isinstance(position, TrainerPosition):
                raise LinkError(
                    f"link 'positions' takes TrainerPosition, not {type(position).__name__}"
                )
            desk.move_trainer(position)
    except LinkError as error:
        logger.info("link from %s ended: %s", channel.peer, error)
    finally:
        await channel.close()
