"""A channel to another role of the run, as soon as one can be had, and what comes over it.

A role that lost its peer, or never had one, waits here: for a peer that lists the endpoint, and for
the dial to succeed. Unblocked by heartbeat answers; the caller cancels it when it drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from services.links import Channel, LinkLimits, Received, dial
from shared.errors import ChannelClosed, IntegrityError, LinkError
from shared.states import Role
from workers.runtime.context import WorkerContext

logger = logging.getLogger(__name__)
REDIAL_S = 0.5


async def dial_peer(
    context: WorkerContext, role: Role, endpoint: str, limits: LinkLimits
) -> Channel:
    """Dial `endpoint` of the first live peer of `role`, again until it answers.

    limits: the credit that this end grants.
    """
    while True:
        peer = await context.wait_for_peer(role, endpoint)
        address = peer.endpoints[endpoint]
        try:
            return await dial(
                endpoint,
                address,
                context.identity,
                limits=limits,
                security=context.security,
                plane=context.config.links.plane,
            )
        except LinkError as error:
            logger.info("cannot reach %s at %s yet: %s", role, address, error)
        # The list may still name a peer that is gone, or one that is about to listen.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REDIAL_S):
                await context.peers_changed()


async def next_message(channel: Channel) -> Received:
    """The next message. Raises ChannelClosed; a damaged message ends the channel too.

    Every stream can be replayed, so what was lost with the channel comes again on the next one.
    """
    try:
        return await channel.receive()
    except IntegrityError as error:
        raise ChannelClosed(str(error)) from error


async def until_closed(channel: Channel) -> None:
    """Raises ChannelClosed when a channel on which nothing comes back ends; never returns."""
    while True:
        with await next_message(channel):
            logger.warning("dropped a message that nobody expects from %s", channel.peer_worker_id)
