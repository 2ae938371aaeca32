"""Object stores for code that blocks: a listing as a list, an object as a seekable binary file.

    BlockingStore --objects--> [ObjectInfo]      BlockingStore --open--> ObjectFile -> json, pyarrow

Each store drives an event loop of its own from the thread that calls it, so it must not be used in
a thread whose event loop is running (call it through `asyncio.to_thread`), nor from two threads at
once. An object is streamed: what is held of it is one chunk. A connection that breaks in the middle
is opened again at the byte where it broke.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import time
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, Self, cast

from services.object_stores.base import ObjectInfo, ObjectStore
from shared.errors import IntegrityError, MeshError

logger = logging.getLogger(__name__)
_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.2


class BlockingStore:
    """An open store; use it as a context manager."""

    def __init__(self, store: ObjectStore) -> None:
        self.url = store.url
        self._store = store
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        try:
            self._runner.run(self._store.__aenter__())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._runner.run(self._store.close())
        finally:
            self._runner.close()

    def objects(self, prefix: str = "") -> list[ObjectInfo]:
        """Objects below the folder `prefix`, by key."""

        async def listing() -> list[ObjectInfo]:
            return [info async for info in self._store.objects(prefix)]

        return sorted(self._runner.run(listing()), key=lambda info: info.key)

    def head(self, key: str) -> ObjectInfo | None:
        """Size and time of one object, or None when there is none."""
        return self._runner.run(self._store.head(key))

    def open(self, info: ObjectInfo) -> ObjectFile:
        """An object of this store, to be read and closed before the store is."""
        return ObjectFile(self, info)

    def start_reading(self, key: str, start: int) -> AsyncGenerator[bytes]:
        """The store's stream of an object; drive it with `next_chunk` and `end_reading`."""
        return cast("AsyncGenerator[bytes]", self._store.read(key, start=start))

    def next_chunk(self, stream: AsyncGenerator[bytes]) -> bytes:
        """The next bytes of a stream, b'' at its end."""

        async def step() -> bytes:
            return await anext(stream, b"")

        return self._runner.run(step())

    def end_reading(self, stream: AsyncGenerator[bytes]) -> None:
        """Release the connection of a stream."""
        self._runner.run(stream.aclose())


class ObjectFile(io.RawIOBase):
    """One object as a read-only file. Reading forwards streams; a jump opens it anew there."""

    def __init__(self, store: BlockingStore, info: ObjectInfo) -> None:
        super().__init__()
        self._store, self._info = store, info
        self._position = 0
        self._stream: AsyncGenerator[bytes] | None = None
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._info.num_bytes}
        target = max(0, base[whence] + offset)
        ahead = target - self._position
        if 0 <= ahead <= len(self._chunk):
            self._chunk = self._chunk[ahead:]
        else:
            self._drop_stream()
        self._position = target
        return target

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._position >= self._info.num_bytes or not view:
            return 0
        if not self._chunk:
            self._chunk = memoryview(self._receive())
        count = min(len(view), len(self._chunk))
        view[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        self._position += count
        return count

    def close(self) -> None:
        if not self.closed:
            self._drop_stream()
        super().close()

    def _receive(self) -> bytes:
        failures = 0
        while True:
            try:
                if self._stream is None:
                    self._stream = self._store.start_reading(self._info.key, self._position)
                chunk = self._store.next_chunk(self._stream)
                if not chunk:
                    raise IntegrityError(
                        f"{self._info.key} at {self._store.url} ended after {self._position} of "
                        f"{self._info.num_bytes} bytes: it was replaced while it was read"
                    )
                return chunk
            except MeshError as error:
                self._drop_stream()
                failures += 1
                if not error.retryable or failures >= _ATTEMPTS:
                    raise
                logger.warning("%s; going on at byte %d", error.detail, self._position)
                time.sleep(_FIRST_PAUSE_S * 2**failures)

    def _drop_stream(self) -> None:
        stream, self._stream, self._chunk = self._stream, None, memoryview(b"")
        if stream is not None:
            self._store.end_reading(stream)
