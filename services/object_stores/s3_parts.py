"""Multipart uploads that go on where they were cut, as pure decisions.

The part size is a pure function of the file's size, so an upload that was cut by SIGKILL is
continued by any later process: it lists the parts that the store holds, compares their size and
MD5 (the ETag of a part) with the file, and sends only the others. Limits are those of Amazon S3:
parts of 5 MiB to 5 GiB, at most 10,000 of them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.files import disk_faults

MIB = 2**20
MIN_PART_BYTES = 5 * MIB
_MAX_PARTS = 10_000


@dataclass(frozen=True)
class Part:
    """One part: numbered from 1, bytes [offset, offset + num_bytes) of the file."""

    number: int
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class StoredPart:
    """A part that the store holds; `etag` as the store spells it, quotes included."""

    num_bytes: int
    etag: str

    def holds(self, data: bytes) -> bool:
        """Whether this is a faithful copy of `data`.

        A store whose ETag is not an MD5 (encryption with own keys) never matches, so such parts
        are sent again: slower, never wrong.
        """
        return self.num_bytes == len(data) and self.etag.strip('"') == md5_hex(data)


def plan_parts(num_bytes: int, *, part_bytes: int) -> list[Part]:
    """Parts of a file, the last one shorter; `part_bytes` grows when there would be too many."""
    if part_bytes < MIN_PART_BYTES:
        raise ValueError(f"part_bytes is {part_bytes}: S3 takes parts of at least {MIN_PART_BYTES}")
    needed = -(-num_bytes // _MAX_PARTS)
    size = max(part_bytes, -(-needed // MIB) * MIB)
    return [
        Part(index + 1, offset, min(size, num_bytes - offset))
        for index, offset in enumerate(range(0, num_bytes, size))
    ]


def matching_size(parts: list[Part], stored: Mapping[int, StoredPart]) -> int:
    """How many stored parts have the size that the plan wants; picks the upload to continue."""
    return sum(
        1
        for part in parts
        if part.number in stored and stored[part.number].num_bytes == part.num_bytes
    )


def read_part(path: Path, part: Part) -> bytes:
    """The bytes of a part; shorter than planned when the file has been cut meanwhile."""
    with disk_faults(path), path.open("rb") as file:
        file.seek(part.offset)
        return file.read(part.num_bytes)


def md5_hex(data: bytes) -> str:
    """MD5 as hex, for comparison with ETags only."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def content_md5(data: bytes) -> str:
    """The value of a Content-MD5 header."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
