"""Shared-memory segments: files under /dev/shm whose life this package owns.

A sender has one segment for a channel, sized by the receiver's byte credit, sparse, with pages
reserved as demand grows. It copies a message's frames into a place of the segment and names
segment and offsets in the envelope; the place is free again when the receiver gives the credit
back. The receiver maps a segment on first sight and keeps the mapping for the channel's life, so
messages that it still holds stay readable after the sender has gone. The standard library's
shared memory is not used: its tracker unlinks segments of processes that are still alive.

Names are dflash-mesh-RUN-INCARNATION-N. A sender that is killed leaves its segments behind;
`remove_stale_segments` removes those of incarnations that no longer live.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from services.files import disk_faults
from services.links.arena import Arena, aligned
from services.links.frames import ByteArray
from services.links.identity import SHM_FOLDER, LinkIdentity

_PREFIX = "dflash-mesh"
_ENTRY = re.compile(r"^(?P<incarnation>[A-Za-z0-9_]+)-\d+$")
_FRAME_ALIGNMENT = 64
_counter = itertools.count()


def _file_prefix(run_id: str) -> str:
    return f"{_PREFIX}-{run_id}-"


class SendingSegment:
    """The sender's segment; raises OSError (ENOSPC) at birth or in `place` when memory is full."""

    def __init__(
        self, identity: LinkIdentity, capacity_bytes: int, folder: Path = SHM_FOLDER
    ) -> None:
        self._arena = Arena(capacity_bytes)
        self._path, self._descriptor = _create(identity, folder)
        self._reserved_bytes = 0
        try:
            os.ftruncate(self._descriptor, self._arena.capacity_bytes)
            self._memory = mmap.mmap(self._descriptor, self._arena.capacity_bytes)
        except BaseException:
            os.close(self._descriptor)
            self._path.unlink()
            raise
        self._bytes = np.frombuffer(self._memory, np.uint8)

    @property
    def name(self) -> str:
        return self._path.name

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether frames of these sizes fit an empty segment."""
        return aligned(_layout(sizes)[1]) <= self._arena.capacity_bytes

    def place(self, sizes: Sequence[int]) -> list[int] | None:
        """Offset of each frame in one place (the first names it), or None while none is free.

        Pages are reserved before they are written: a full /dev/shm is an OSError here, instead
        of a bus error in the copy.
        """
        relative, total = _layout(sizes)
        start = self._arena.allocate(total)
        if start is None:
            return None
        wanted = self._arena.high_water_bytes
        if wanted > self._reserved_bytes:
            try:
                os.posix_fallocate(
                    self._descriptor, self._reserved_bytes, wanted - self._reserved_bytes
                )
            except OSError:
                self._arena.free(start)
                self._arena.high_water_bytes = self._reserved_bytes
                raise
            self._reserved_bytes = wanted
        return [start + offset for offset in relative]

    def views(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[ByteArray]:
        """The places to copy frames to; they stay valid, if unseen, after `close`."""
        return [self._bytes[o : o + s] for o, s in zip(offsets, sizes, strict=True)]

    def free(self, offsets: Sequence[int]) -> None:
        """The receiver has released the message that was placed at `offsets`."""
        self._arena.free(offsets[0])

    def close(self) -> None:
        """Remove the file; the memory goes when the last mapping of either end goes."""
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        self._path.unlink(missing_ok=True)
        del self._bytes
        _unmap(self._memory)


class ReceivingSegments:
    """Mappings of one peer's segments, by name."""

    def __init__(self, peer: LinkIdentity, folder: Path = SHM_FOLDER) -> None:
        self._prefix = f"{_file_prefix(peer.run_id)}{peer.incarnation}-"
        self._folder = folder
        self._mappings: dict[str, mmap.mmap] = {}

    def views(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
        """Writable views of frames; ValueError when they are not in a segment of this peer,
        OSError when its file cannot be mapped."""
        if name not in self._mappings:
            self._mappings[name] = self._map(name)
        whole = memoryview(self._mappings[name])
        if len(offsets) != len(sizes):
            raise ValueError(f"{len(offsets)} offsets for {len(sizes)} frames")
        for offset, size in zip(offsets, sizes, strict=True):
            if offset < 0 or size < 0 or offset + size > len(whole):
                raise ValueError(f"{size} bytes at {offset} are not inside segment {name}")
        return [whole[o : o + s] for o, s in zip(offsets, sizes, strict=True)]

    def close(self) -> None:
        for memory in self._mappings.values():
            _unmap(memory)
        self._mappings.clear()

    def _map(self, name: str) -> mmap.mmap:
        if not (name.startswith(self._prefix) and name[len(self._prefix) :].isdigit()):
            raise ValueError(f"segment {name!r} is not one of {self._prefix}N")
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_NOFOLLOW)
        try:
            return mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)


def remove_stale_segments(
    run_id: str, live_incarnations: Collection[str], folder: Path = SHM_FOLDER
) -> list[str]:
    """Remove the run's segments whose incarnation is not in `live_incarnations`; their names."""
    prefix = _file_prefix(run_id)
    removed: list[str] = []
    if not folder.is_dir():
        return removed
    with disk_faults(folder):
        for path in sorted(folder.glob(f"{prefix}*")):
            match = _ENTRY.match(path.name.removeprefix(prefix))
            if match and match["incarnation"] not in live_incarnations:
                path.unlink(missing_ok=True)
                removed.append(path.name)
    return removed


def _create(identity: LinkIdentity, folder: Path) -> tuple[Path, int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    while True:
        number = next(_counter)
        path = folder / f"{_file_prefix(identity.run_id)}{identity.incarnation}-{number}"
        try:
            return path, os.open(path, flags, 0o600)
        except OSError as error:
            if error.errno != errno.EEXIST:  # another end of the same incarnation has the number
                raise


def _layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _FRAME_ALIGNMENT) * _FRAME_ALIGNMENT
    return offsets, end


def _unmap(memory: mmap.mmap) -> None:
    try:
        memory.close()
    except BufferError:
        # Somebody still holds a view; the mapping goes with the last of them.
        return
