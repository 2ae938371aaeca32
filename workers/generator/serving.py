"""The link `completions`: the log from any position on, then its live tail.

    batcher --CompletionsFrom(seq)--> [one task a channel] --Completions--> batcher

A channel sends nothing until its peer has said where it stands; a later CompletionsFrom moves it.
It waits for the store to grow, and for the peer's credit. The message that reaches the end of a
finished log carries `final`; asking again gives it again.
"""

from __future__ import annotations

import asyncio
import logging

from services.links import Channel, ChannelClosed, Listener
from shared.errors import LinkError
from shared.messages import Completions, CompletionsFrom
from workers.generator.store import CompletionStore

logger = logging.getLogger(__name__)
_MAX_ITEMS = 64


async def serve_completions(listener: Listener, store: CompletionStore) -> None:
    """Serve every peer until cancelled."""
    async with asyncio.TaskGroup() as group:
        while True:
            channel = await listener.accept()
            group.create_task(_serve(channel, store), name=f"to {channel.peer_worker_id}")


async def _serve(channel: Channel, store: CompletionStore) -> None:
    stream: asyncio.Task[None] | None = None
    try:
        while True:
            with await channel.receive() as received:
                wanted = received.payload
            if not isinstance(wanted, CompletionsFrom):
                raise LinkError(
                    f"link 'completions' takes CompletionsFrom, not {type(wanted).__name__}"
                )
            await _end(stream)
            stream = asyncio.create_task(_stream(channel, store, wanted.seq), name="stream")
    except LinkError as error:
        logger.info("link to %s ended: %s", channel.peer_worker_id, error)
    finally:
        await _end(stream)
        await channel.close()


async def _stream(channel: Channel, store: CompletionStore, seq: int) -> None:
    """Send from `seq` to the end of the finished log."""
    try:
        while True:
            await store.wait_beyond(seq)
            items = await store.read(seq, _MAX_ITEMS)
            seq += len(items)
            final = store.finished and seq >= store.next_seq
            await channel.send(
                Completions(
                    items=items,
                    next_seq=seq,
                    final=final,
                    num_failed=store.num_failed,
                    num_prompts=store.num_prompts,
                )
            )
            if final:
                return
    except ChannelClosed:
        return  # the receiving side of the channel says why


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
