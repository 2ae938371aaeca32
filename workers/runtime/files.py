"""Announcing closed files to the run's archiver.

    role -> announce(path, kind) -> queue -> [hash in a thread] -> `files` link -> archiver

Announcements wait here until there is an archiver, and all are sent again to a new incarnation of
it: the archiver knows what it has already. Nothing of this holds the role up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Literal, cast

from services.files import sha256_file
from services.links import Channel, LinkLimits, dial
from shared.api.workers import Peer
from shared.errors import LinkError
from shared.messages import FileClosed
from shared.states import Role
from workers.runtime.context import WorkerContext

logger = logging.getLogger(__name__)
_ENDPOINT = "files"
_LIMITS = LinkLimits(max_messages=16, max_bytes=2**20)
_REDIAL_S = 1.0
Kind = Literal["completions", "shard", "checkpoint", "log", "metadata", "quarantine"]


class FileAnnouncer:
    """Keeps what the role has closed, in order, and brings it to the archiver."""

    def __init__(self) -> None:
        self._closed: list[tuple[Path, Kind]] = []
        self._described: list[FileClosed | None] = []
        self._more = asyncio.Event()

    def announce(self, path: Path, kind: str) -> None:
        """Remember a file that will not change any more. Never blocks."""
        self._closed.append((path, cast("Kind", kind)))
        self._more.set()

    async def run(self, context: WorkerContext) -> None:
        """Serve archivers as they come, until cancelled."""
        while True:
            peer = await context.wait_for_peer(Role.ARCHIVER, _ENDPOINT)
            try:
                await self._serve(context, peer)
            except LinkError as error:
                logger.info("the link to the archiver ended: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REDIAL_S):
                    await context.peers_changed()

    async def _serve(self, context: WorkerContext, peer: Peer) -> None:
        channel = await dial(
            _ENDPOINT,
            peer.endpoints[_ENDPOINT],
            context.identity,
            limits=_LIMITS,
            security=context.security,
            plane="zmq",
        )
        try:
            async with asyncio.TaskGroup() as group:
                sender = group.create_task(self._send_all(context, channel))
                try:
                    await channel.receive()  # the archiver says nothing: this ends with the link
                finally:
                    sender.cancel()
        except* LinkError as errors:
            raise LinkError(str(errors.exceptions[0])) from errors
        finally:
            await channel.close()

    async def _send_all(self, context: WorkerContext, channel: Channel) -> None:
        num_sent = 0
        while True:
            while num_sent < len(self._closed):
                if num_sent == len(self._described):
                    path, kind = self._closed[num_sent]
                    self._described.append(
                        await asyncio.to_thread(_describe, context.folder.root, path, kind)
                    )
                message = self._described[num_sent]
                if message is not None:
                    await channel.send(message)
                num_sent += 1
            self._more.clear()
            await self._more.wait()


def _describe(root: Path, path: Path, kind: Kind) -> FileClosed | None:
    try:
        num_bytes, digest = sha256_file(path)
    except FileNotFoundError:
        logger.info("%s was removed before it was announced to the archiver", path.name)
        return None
    return FileClosed(
        path=path.relative_to(root).as_posix(),
        num_bytes=num_bytes,
        sha256=digest,
        kind=kind,
    )
