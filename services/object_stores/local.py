"""A folder as an object store.

A file is copied beside its place, hashed on the way, synced, and then linked into place: the link
fails when the name is taken, so `replace=False` holds against other writers too. Symbolic links
below the folder are neither listed nor followed, so nothing outside is read or written.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import stat
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from services.files import disk_faults, is_temporary, sync_file, sync_folder
from services.object_stores.base import (
    READ_CHUNK_BYTES,
    ObjectInfo,
    ObjectStore,
    OnBytes,
    ignore_bytes,
)
from services.object_stores.urls import FileUrl, check_key
from shared.errors import ConflictError, ForbiddenPathError, IntegrityError, NotFoundError

# A living copy touches its temporary file all the time.
ABANDONED_AFTER_S = 600.0
_LIST_PAGE = 500


class LocalStore(ObjectStore):
    """Objects are the regular files below `root`, which is made on the first write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(FileUrl(root))

    async def put_file(
        self,
        path: Path,
        key: str,
        *,
        sha256: str,
        replace: bool = False,
        on_bytes: OnBytes = ignore_bytes,
    ) -> None:
        target = self._target(key)
        stop = threading.Event()
        chunks = _chunks(path, sha256, stop, on_bytes)
        try:
            await asyncio.to_thread(self._copy, path, target, chunks, replace)
        finally:
            stop.set()  # a cancelled copy ends at its next chunk

    async def put_bytes(self, key: str, data: bytes, *, replace: bool = True) -> None:
        await asyncio.to_thread(self._write, self._target(key), iter([data]), replace)

    async def read(self, key: str, *, start: int = 0) -> AsyncIterator[bytes]:
        path = self._target(key)
        try:
            file = await asyncio.to_thread(_open_regular, path)
        except FileNotFoundError:
            raise NotFoundError(f"there is no {key} at {self.url}") from None
        try:
            with disk_faults(path):
                os.lseek(file, start, os.SEEK_SET)
                while chunk := await asyncio.to_thread(os.read, file, READ_CHUNK_BYTES):
                    yield chunk
        finally:
            os.close(file)

    async def objects(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        start = self._target(prefix) if prefix else self.root
        walk = _walk(start, self.root)
        while page := await asyncio.to_thread(_take, walk, _LIST_PAGE):
            for info in page:
                yield info

    async def head(self, key: str) -> ObjectInfo | None:
        try:
            status = self._target(key).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return ObjectInfo(key, status.st_size, status.st_mtime)

    async def delete(self, key: str) -> None:
        path = self._target(key)
        with disk_faults(path):
            path.unlink(missing_ok=True)

    async def discard_unfinished(self) -> int:
        return await asyncio.to_thread(_remove_abandoned, self.root, ABANDONED_AFTER_S)

    def _target(self, key: str) -> Path:
        path = self.root / check_key(key)
        if not path.parent.resolve().is_relative_to(self.root.resolve()):
            raise ForbiddenPathError(f"{key} leads out of {self.root} through a symbolic link")
        return path

    def _copy(self, source: Path, target: Path, chunks: Iterator[bytes], replace: bool) -> None:
        _remove_abandoned(target.parent, ABANDONED_AFTER_S, name=target.name)
        self._write(target, chunks, replace)
        if target.stat().st_size != source.stat().st_size:
            raise IntegrityError(f"{target} has another size than {source}: check that disk")

    def _write(self, target: Path, chunks: Iterator[bytes], replace: bool) -> None:
        with disk_faults(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.parent / f".{target.name}.{secrets.token_hex(6)}.tmp"
            try:
                with temporary.open("xb") as file:
                    for chunk in chunks:
                        file.write(chunk)
                    sync_file(file)
                if replace:
                    temporary.replace(target)
                else:
                    _place_new(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(target.parent)


def _chunks(source: Path, sha256: str, stop: threading.Event, on_bytes: OnBytes) -> Iterator[bytes]:
    """The bytes of `source`; IntegrityError at the end when they are not what `sha256` says."""
    digest = hashlib.sha256()
    with disk_faults(source), source.open("rb") as file:
        while chunk := file.read(READ_CHUNK_BYTES):
            if stop.is_set():
                raise InterruptedError(f"the copy of {source} was cancelled")
            digest.update(chunk)
            yield chunk
            on_bytes(len(chunk))
    if digest.hexdigest() != sha256:
        raise IntegrityError(f"{source} changed while it was copied: copy it again")


def _place_new(temporary: Path, target: Path) -> None:
    taken = ConflictError(f"{target} exists already and is not overwritten")
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        raise taken from None
    except OSError:
        # A file system without hard links (exFAT, some network mounts): check, then rename.
        if target.exists() or target.is_symlink():
            raise taken from None
        temporary.replace(target)


def _open_regular(path: Path) -> int:
    with disk_faults(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(path)
    return descriptor


def _walk(folder: Path, root: Path) -> Iterator[ObjectInfo]:
    """Regular files below `folder`, without following links."""
    try:
        with disk_faults(folder), os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), root)
        elif entry.is_file(follow_symlinks=False) and not is_temporary(entry.name):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            key = Path(entry.path).relative_to(root).as_posix()
            yield ObjectInfo(key, status.st_size, status.st_mtime)


def _take(iterator: Iterator[ObjectInfo], count: int) -> list[ObjectInfo]:
    page: list[ObjectInfo] = []
    for info in iterator:
        page.append(info)
        if len(page) == count:
            break
    return page


def _remove_abandoned(folder: Path, older_than_s: float, name: str | None = None) -> int:
    """Remove temporary files of dead writers below `folder` (or of `name` in it alone)."""
    pattern = f".{_escape(name)}.*.tmp" if name else ".*.tmp"
    removed = 0
    found = folder.glob(pattern) if name else folder.rglob(pattern)
    for path in found if folder.is_dir() else ():
        try:
            old = time.time() - path.lstat().st_mtime > older_than_s
            if old and is_temporary(path.name) and not path.is_symlink():
                path.unlink()
                removed += 1
        except FileNotFoundError:
            continue
    return removed


def _escape(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
