"""An export's files as one tar stream, read from where they were exported to.

The manifest at the destination says what belongs to it. Headers are made beforehand, so the
stream's length is known and a download that breaks off is noticed by the caller. Every file is
hashed on the way; one that is not what the manifest says ends the stream early.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from control_plane.store.tables import Export
from services.object_stores import ObjectStore, open_store
from shared.errors import ConflictError, IntegrityError, NotFoundError
from shared.manifest import MANIFEST_NAME, Manifest, parse_manifest

_BLOCK = tarfile.BLOCKSIZE
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Member:
    """One file: its tar header, where it lies, and what its bytes must be."""

    header: bytes
    key: str
    num_bytes: int
    sha256: str

    @property
    def padding(self) -> int:
        return -self.num_bytes % _BLOCK


@dataclass(frozen=True)
class Archive:
    """A tar archive that is made while it is sent."""

    name: str
    destination: str
    members: list[Member]

    @property
    def num_bytes(self) -> int:
        files = sum(len(m.header) + m.num_bytes + m.padding for m in self.members)
        return files + 2 * _BLOCK

    async def stream(self) -> AsyncIterator[bytes]:
        """The archive's bytes; IntegrityError when a file is not what the manifest says."""
        async with open_store(self.destination) as store:
            for member in self.members:
                yield member.header
                async with aclosing(_contents(store, member)) as contents:
                    async for chunk in contents:
                        yield chunk
                yield bytes(member.padding)
        yield bytes(2 * _BLOCK)


async def open_archive(export: Export) -> Archive:
    """The archive of a completed export; ConflictError when its files are not there any more."""
    async with open_store(export.destination) as store:
        try:
            data = await store.read_bytes(MANIFEST_NAME)
        except NotFoundError:
            raise ConflictError(
                f"{export.destination} has no {MANIFEST_NAME} any more; export again"
            ) from None
        if hashlib.sha256(data).hexdigest() != export.manifest_sha256:
            raise ConflictError(
                f"the manifest at {export.destination} is not the one this export wrote (a later "
                "export went there); fetch that one, or export again"
            )
        manifest = parse_manifest(data, source=f"{MANIFEST_NAME} at {export.destination}")
        await _check_presence(store, manifest)
    name = _UNSAFE.sub("_", f"{manifest.run_name}-{manifest.run_id}")
    members = [
        _member(name, MANIFEST_NAME, MANIFEST_NAME, data, manifest.created_at),
        *(_file_members(name, manifest)),
    ]
    return Archive(f"{name}.tar", export.destination, members)


async def _check_presence(store: ObjectStore, manifest: Manifest) -> None:
    for file in manifest.files:
        found = await store.head(file.key)
        if found is None or found.num_bytes != file.num_bytes:
            raise ConflictError(
                f"{file.key} at {store.url} is missing or has changed since it was exported; "
                "verify the export, or export again"
            )


def _file_members(folder: str, manifest: Manifest) -> list[Member]:
    return [
        Member(
            _header(folder, file.path, file.num_bytes, manifest.created_at),
            file.key,
            file.num_bytes,
            file.sha256,
        )
        for file in manifest.files
    ]


def _member(folder: str, path: str, key: str, data: bytes, modified_at: float) -> Member:
    digest = hashlib.sha256(data).hexdigest()
    return Member(_header(folder, path, len(data), modified_at), key, len(data), digest)


def _header(folder: str, path: str, num_bytes: int, modified_at: float) -> bytes:
    info = tarfile.TarInfo(f"{folder}/{path}")
    info.size, info.mtime, info.mode = num_bytes, int(modified_at), 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8")


async def _contents(store: ObjectStore, member: Member) -> AsyncGenerator[bytes, None]:
    digest = hashlib.sha256()
    sent = 0
    # Both stores read by generators; closing them frees the file or connection at once.
    chunks = cast("AsyncGenerator[bytes, None]", store.read(member.key))
    async with aclosing(chunks):
        async for chunk in chunks:
            sent += len(chunk)
            if sent > member.num_bytes:
                break
            digest.update(chunk)
            yield chunk
    if sent != member.num_bytes or digest.hexdigest() != member.sha256:
        raise IntegrityError(
            f"{member.key} at {store.url} is not what its manifest says; the archive ends here"
        )
