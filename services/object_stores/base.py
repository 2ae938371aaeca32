"""What every object store can do: a flat space of keys under one address.

    put_file / put_bytes -> whole objects, never half a one   read / get_file -> their bytes
    objects -> all below a prefix, page by page             head, delete    -> one object

Invariants: an object appears whole or not at all. `replace=False` never overwrites: it raises
ConflictError when the key is taken, also when another writer took it a moment ago, as far as the
store can tell. After `put_file` the size at the store has been compared; `digest` reads an object
back, which is what a verification trusts. Keys are relative to the store's own address.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from shared.errors import TooLargeError

READ_CHUNK_BYTES = 2**20
OnBytes = Callable[[int], None]


def ignore_bytes(num_bytes: int) -> None:
    """For callers who do not follow the progress within a file."""


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a listing."""

    key: str
    num_bytes: int
    modified_at: float  # seconds since epoch


class ObjectStore(ABC):
    """An open store; use it as an async context manager."""

    url: str

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release connections; the store cannot be used afterwards."""
        return

    @abstractmethod
    async def put_file(
        self,
        path: Path,
        key: str,
        *,
        sha256: str,
        replace: bool = False,
        on_bytes: OnBytes = ignore_bytes,
    ) -> None:
        """Store the file `path`, whose SHA-256 the caller knows, as `key`.

        `on_bytes` hears of every piece that is there, maybe from another thread.
        Raises ConflictError (key taken and not `replace`), IntegrityError (the file is not what
        `sha256` says, or what arrived is not what was sent), DiskFullError, UnreachableError or
        UpstreamTimeout (an outage: the same call again goes on from the finished parts),
        UpstreamError.
        """

    @abstractmethod
    async def put_bytes(self, key: str, data: bytes, *, replace: bool = True) -> None:
        """Store a small object; same errors as `put_file`."""

    @abstractmethod
    def read(self, key: str, *, start: int = 0) -> AsyncIterator[bytes]:
        """The object's bytes from `start` on, in chunks; NotFoundError when there is none.

        `start` must lie below the object's size, or be 0.
        """

    @abstractmethod
    def objects(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects whose key is below the folder `prefix` ('' for all), each once, in any order."""

    @abstractmethod
    async def head(self, key: str) -> ObjectInfo | None:
        """Size and time of one object, or None when there is none."""

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""

    @abstractmethod
    async def discard_unfinished(self) -> int:
        """Give up what unfinished uploads left under this address; how many there were."""

    async def digest(self, key: str) -> tuple[int, str]:
        """Size and SHA-256 of an object, by reading all of it."""
        digest = hashlib.sha256()
        size = 0
        async for chunk in self.read(key):
            digest.update(chunk)
            size += len(chunk)
        return size, digest.hexdigest()

    async def read_bytes(self, key: str, *, max_bytes: int = 64 * 2**20) -> bytes:
        """A small object whole; TooLargeError past `max_bytes`."""
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.read(key):
            size += len(chunk)
            if size > max_bytes:
                raise TooLargeError(f"{key} at {self.url} is larger than {max_bytes} bytes")
            chunks.append(chunk)
        return b"".join(chunks)
