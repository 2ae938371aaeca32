"""The sending half of a channel: credit, numbering, and the plane each message takes.

`send` waits for credit, which the peer's releases return, or for the end of the channel. Sends
go one after the other in the order of their calls. Nothing counts as sent before it is handed to
the socket, so a cancelled send has sent nothing and holds nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Literal

from services.links.credit import CreditWindow
from services.links.frames import (
    ByteArray,
    Frame,
    checksums_of,
    copy_all,
    flatten,
    off_loop,
    specs_of,
)
from services.links.identity import SHM_FOLDER, LinkIdentity, LinkLimits
from services.links.shm import SendingSegment
from services.links.stats import LinkStats, Meter
from services.links.wire import DATA, Part, ProtocolError
from shared.errors import ChannelClosed
from shared.messages import Envelope, Payload, encode_envelope

logger = logging.getLogger(__name__)

INLINE_BYTES = 2**16  # smaller messages travel with their envelope on every plane


class Outbox:
    """`post` hands parts to the socket and ends the channel when it cannot."""

    def __init__(
        self,
        where: str,
        identity: LinkIdentity,
        granted: LinkLimits,
        plane: Literal["shm", "zmq"],
        post: Callable[[list[Part]], None],
    ) -> None:
        self._where = where
        self._identity = identity
        self._window = CreditWindow(granted)
        self._shared = plane == "shm"
        self._post = post
        self._meter = Meter()
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._ended: str | None = None
        self._next_number = 0
        self._segment: SendingSegment | None = None
        self._warned = False
        self._places: dict[int, list[int]] = {}  # offsets of outstanding messages, by number

    async def send(self, payload: Payload, frames: Sequence[Frame]) -> None:
        """See Channel.send."""
        flat = flatten(frames)
        num_bytes = sum(frame.nbytes for frame in flat)
        async with self._turn:
            offsets = await self._admission(num_bytes, [frame.nbytes for frame in flat])
            try:
                parts = await self._parts(payload, frames, flat, num_bytes, offsets)
                self._raise_if_ended()
                number = self._next_number
                self._window.take(number, num_bytes)
                self._next_number += 1
            except BaseException:
                if offsets is not None and self._segment is not None:
                    self._segment.free(offsets)
                raise
            if offsets is not None:
                self._places[number] = offsets
            self._post(parts)
            self._raise_if_ended()
            self._meter.count(num_bytes)

    async def flush(self) -> None:
        """See Channel.flush."""
        while self._window.num_messages:
            self._raise_if_ended()
            await self._change()

    def released(self, number: int) -> None:
        """The peer has released message `number`; ProtocolError when it holds no credit."""
        if not self._window.give_back(number):
            raise ProtocolError(f"credit for message {number}, which is not outstanding")
        offsets = self._places.pop(number, None)
        if offsets is not None and self._segment is not None:
            self._segment.free(offsets)
        self._changed.set()

    def end(self, reason: str) -> None:
        """No message leaves any more; every waiting sender raises ChannelClosed."""
        self._ended = reason
        self._places.clear()
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._changed.set()

    def stats(self) -> LinkStats:
        limits = self._window.limits
        return LinkStats(
            depth=self._window.num_messages,
            capacity=limits.max_messages,
            bytes=self._window.num_bytes,
            capacity_bytes=limits.max_bytes,
            messages_total=self._meter.messages_total,
            bytes_total=self._meter.bytes_total,
            wait_s=self._meter.wait_s,
            active_s=self._meter.active_s,
        )

    async def _admission(self, num_bytes: int, sizes: list[int]) -> list[int] | None:
        """Wait for credit; offsets in shared memory, or None for a message that goes inline."""
        shared = self._shared and num_bytes >= INLINE_BYTES
        while True:
            self._raise_if_ended()
            if self._window.admits(num_bytes):
                segment = self._open_segment() if shared else None
                if segment is None or not segment.fits(sizes):
                    return None
                try:
                    offsets = segment.place(sizes)
                except OSError as error:
                    self._warn_inline(error)
                    return None
                if offsets is not None:
                    return offsets
                # Credit is there but no hole is large enough: a release will make one.
            with self._meter:
                await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _parts(
        self,
        payload: Payload,
        frames: Sequence[Frame],
        flat: list[ByteArray],
        num_bytes: int,
        offsets: list[int] | None,
    ) -> list[Part]:
        if offsets is None:
            checksums = await off_loop(lambda: checksums_of(flat), num_bytes)
            return [DATA, self._envelope(payload, frames, checksums, None), *flat]
        assert self._segment is not None
        places = self._segment.views(offsets, [frame.nbytes for frame in flat])
        await off_loop(lambda: copy_all(places, flat), num_bytes)
        return [DATA, self._envelope(payload, frames, [0] * len(flat), offsets)]

    def _envelope(
        self,
        payload: Payload,
        frames: Sequence[Frame],
        checksums: Sequence[int],
        offsets: list[int] | None,
    ) -> bytes:
        shared = offsets is not None and self._segment is not None
        return encode_envelope(
            Envelope(
                run_id=self._identity.run_id,
                sender=self._identity.worker_id,
                number=self._next_number,
                payload=payload,
                frames=specs_of(frames, checksums),
                shm_name=self._segment.name if shared and self._segment else None,
                shm_offsets=offsets or [],
            )
        )

    def _open_segment(self) -> SendingSegment | None:
        if self._segment is None:
            try:
                self._segment = SendingSegment(self._identity, self._window.limits.max_bytes)
            except OSError as error:
                self._warn_inline(error)
        return self._segment

    def _warn_inline(self, error: OSError) -> None:
        logger.log(
            logging.DEBUG if self._warned else logging.WARNING,
            "%s: shared memory cannot be used (%s): large messages go through the socket, which "
            "is slower. Give %s more room, lower links.max_bytes, or set links.plane to 'zmq'",
            self._where,
            error.strerror,
            SHM_FOLDER,
        )
        self._warned = True

    def _raise_if_ended(self) -> None:
        if self._ended is not None:
            raise ChannelClosed(self._ended)
