"""Durable files: a file appears whole or not at all, and a full disk has one name.

    write -> flush -> fsync -> rename over the target -> fsync of the folder

Invariants: a reader never sees half a file; after `write_file` returns, the content survives a
power cut; whatever fails, the old file is still there and the temporary one is gone (unless the
process was killed: `remove_temporaries` clears those). A temporary file is called
`.NAME.RANDOM.tmp`, beside its target, so the rename never crosses a file system.

Everything here is synchronous; call it through `asyncio.to_thread` where the data is large.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from shared.errors import (
    DiskFullError,
    EnvironmentFault,
    ExhaustedFault,
    IntegrityError,
    ReadOnlyError,
    StorageFault,
)

HASH_CHUNK_BYTES = 2**20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FAULTS: dict[int | None, tuple[type[EnvironmentFault], str]] = {
    errno.EACCES: (StorageFault, "permission denied"),
    errno.EPERM: (StorageFault, "operation not permitted"),
    errno.EROFS: (ReadOnlyError, "the file system is read-only"),
    errno.EIO: (ReadOnlyError, "input/output error of the disk"),
    errno.EMFILE: (ExhaustedFault, "too many open files in this process (ulimit -n)"),
    errno.ENFILE: (ExhaustedFault, "too many open files on this machine"),
}


@contextmanager
def disk_faults(path: Path | str) -> Iterator[None]:
    """Turn faults of the machine inside the block into a kind of EnvironmentFault.

    Other OSErrors (a missing file, a folder where a file should be) pass through: they are the
    caller's business.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFullError(
                f"no space left for {path}: free some space on that disk, then resume"
            ) from error
        if error.errno in _FAULTS:
            kind, cause = _FAULTS[error.errno]
            remedy = "check the disk and the permissions of the user that runs this process"
            if kind is ExhaustedFault:
                remedy = "raise that limit, or close what holds them"
            raise kind(f"cannot use {path}: {cause}; {remedy}") from error
        raise


@contextmanager
def atomic_writer(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that becomes `path` when the block ends without an error.

    Missing parent folders are made. Raises DiskFullError or EnvironmentFault.
    """
    with disk_faults(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
        try:
            with temporary.open("xb") as file:
                yield file
                sync_file(file)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_file(path: Path, data: bytes | str) -> None:
    """Replace `path` by `data` (text as UTF-8), atomically and durably."""
    with atomic_writer(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def write_json(path: Path, value: Any) -> None:
    """`value` as indented JSON with a final newline; NaN and infinity are refused (ValueError)."""
    write_file(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def sync_file(file: IO[bytes]) -> None:
    """Flush and fsync an open file, so that what was written survives a power cut."""
    with disk_faults(file.name):
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that names made or renamed in it survive a power cut."""
    with disk_faults(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_temporary(name: str) -> bool:
    """Whether a file name is that of an unfinished atomic write."""
    return name.startswith(".") and name.endswith(".tmp")


def remove_temporaries(folder: Path) -> list[Path]:
    """Remove what killed writers left in `folder`; only for a folder without a living writer."""
    if not folder.is_dir():
        return []
    left = [path for path in folder.iterdir() if is_temporary(path.name) and path.is_file()]
    for path in left:
        path.unlink(missing_ok=True)
    return left


def sha256_bytes(data: bytes) -> str:
    """SHA-256 as lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path, *, num_bytes: int | None = None) -> tuple[int, str]:
    """Size and SHA-256 (hex) of a file, or of its first `num_bytes`.

    With `num_bytes`, a file that is still appended to has a stable answer. The size returned is
    what was read, so it is smaller than `num_bytes` when the file is.
    """
    digest = hashlib.sha256()
    size = 0
    with disk_faults(path), path.open("rb", buffering=0) as file:
        if num_bytes is None:
            whole = hashlib.file_digest(file, "sha256")
            return file.tell(), whole.hexdigest()
        while size < num_bytes:
            chunk = file.read(min(HASH_CHUNK_BYTES, num_bytes - size))
            if not chunk:
                break
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


@dataclass(frozen=True)
class FileSum:
    """What a file was when it was written."""

    num_bytes: int
    sha256: str


def file_sum(path: Path) -> FileSum:
    """What a file is now; blocking."""
    return FileSum(*sha256_file(path))


def check_sum(path: Path, recorded: FileSum, record: Path) -> None:
    """IntegrityError when `path` is missing or not what `record` (a file's path) says it is."""
    try:
        found = file_sum(path)
    except FileNotFoundError as error:
        raise IntegrityError(f"{path} is missing, though {record} names it") from error
    if found != recorded:
        raise IntegrityError(
            f"{path} is damaged: it has {found.num_bytes} bytes with sha256 {found.sha256}, "
            f"{record} says {recorded.num_bytes} bytes with sha256 {recorded.sha256}"
        )
