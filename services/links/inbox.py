"""The receiving half of a channel: arrivals in order, checked, holding credit until released.

The socket's reader calls `take_in` for each data message and never waits. `receive` waits for an
arrival or for the end of the channel; what arrived before the end is still delivered. Invariant:
a message is outstanding from `take_in` until its `Received` is released.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zmq

from services.links.credit import CreditWindow
from services.links.frames import Frame, check_sizes, off_loop, verify
from services.links.identity import LinkIdentity, LinkLimits
from services.links.outbox import INLINE_BYTES
from services.links.shm import ReceivingSegments
from services.links.stats import LinkStats, Meter
from services.links.wire import ProtocolError, unpack_envelope
from shared.errors import ChannelClosed, IntegrityError
from shared.messages import Envelope


@dataclass
class Arrival:
    """A message with the bytes of its frames; `checked` once no checksum is left to compute."""

    envelope: Envelope
    buffers: list[memoryview]
    num_bytes: int
    checked: bool

    def frames(self) -> dict[str, Frame]:
        return {
            spec.name: Frame(spec.name, spec.dtype, spec.shape, buffer)
            for spec, buffer in zip(self.envelope.frames, self.buffers, strict=True)
        }


class Inbox:
    """`limits` is what this end granted; `release` tells the peer that a message is released."""

    def __init__(
        self,
        where: str,
        peer: LinkIdentity,
        limits: LinkLimits,
        release: Callable[[int], None],
    ) -> None:
        self._where = where
        self._peer = peer
        self._window = CreditWindow(limits)
        self._release = release
        self._segments = ReceivingSegments(peer)
        self._meter = Meter()
        self._arrivals: deque[Arrival] = deque()
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._ended: str | None = None
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._arrivals)

    def take_in(self, parts: Sequence[zmq.Frame]) -> None:
        """Queue a data message; ProtocolError when it is malformed, out of order or unpaid."""
        envelope = unpack_envelope(parts)
        if envelope.run_id != self._peer.run_id or envelope.sender != self._peer.worker_id:
            raise ProtocolError(f"a message of run {envelope.run_id}, sender {envelope.sender}")
        if envelope.number != self._next_number:
            raise ProtocolError(f"message {envelope.number} came where {self._next_number} was due")
        try:
            buffers = self._buffers(envelope, parts[2:])
            check_sizes(envelope.frames, [buffer.nbytes for buffer in buffers])
        except (ValueError, OSError) as error:
            raise ProtocolError(str(error)) from error
        num_bytes = sum(buffer.nbytes for buffer in buffers)
        if not self._window.admits(num_bytes):
            raise ProtocolError(f"message {envelope.number} exceeds the credit granted")
        self._window.take(envelope.number, num_bytes)
        self._next_number += 1
        checked = envelope.shm_name is not None or not buffers
        self._arrivals.append(Arrival(envelope, buffers, num_bytes, checked))
        self._changed.set()

    async def receive(self) -> Arrival:
        """The next message, verified; IntegrityError when its bytes changed on the way.

        A cancelled receive leaves the message for the next one.
        """
        async with self._turn:
            while not self._arrivals:
                if self._ended is not None:
                    raise ChannelClosed(self._ended)
                self._changed.clear()
                with self._meter:
                    await self._changed.wait()
            arrival = self._arrivals[0]
            if not arrival.checked:
                try:
                    await off_loop(
                        lambda: verify(arrival.envelope.frames, arrival.buffers, self._where),
                        arrival.num_bytes,
                    )
                except IntegrityError:
                    self._arrivals.clear()  # those after it come from the same broken channel
                    raise
                arrival.checked = True
            self._arrivals.popleft()
            self._meter.count(arrival.num_bytes)
            return arrival

    def release(self, arrival: Arrival) -> None:
        """Give the credit of `arrival` back, and make its views unusable where nobody uses them."""
        for buffer in arrival.buffers:
            try:
                buffer.release()
            except BufferError:
                continue  # a tensor made from it still exists; its owner knows it is stale
        if self._window.give_back(arrival.envelope.number) and self._ended is None:
            self._release(arrival.envelope.number)

    def end(self, reason: str) -> None:
        """Nothing arrives any more; receivers get what is queued, then ChannelClosed."""
        self._ended = reason
        self._segments.close()
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

    def _buffers(self, envelope: Envelope, frames: Sequence[zmq.Frame]) -> list[memoryview]:
        if envelope.shm_name is None:
            return [_writable(frame) for frame in frames]
        if frames:
            raise ValueError("a message in shared memory that also has inline frames")
        sizes = [spec.num_bytes for spec in envelope.frames]
        return self._segments.views(envelope.shm_name, envelope.shm_offsets, sizes)


def _writable(frame: zmq.Frame) -> memoryview:
    """The bytes of a part; small ones are copied, since they may lie at an odd address."""
    buffer = frame.buffer
    return memoryview(bytearray(buffer)) if buffer.nbytes < INLINE_BYTES else buffer
