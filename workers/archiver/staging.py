"""A still picture of files that go on changing.

    settled file -> hard link (costs nothing, survives the trainer removing the checkpoint)
    other file   -> copy of the bytes that were there when it was looked at, whole lines, redacted

The picture lies in `.staging/JOB` of the run folder, on the same disk. A lock held for as long as
the job lives tells a living picture from one that a killed job left; the latter is removed by the
next job. Nothing here writes to a file of the run.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.files import HASH_CHUNK_BYTES, FileSum, disk_faults, sha256_file
from services.secret_values import contains_secret, redact
from shared.api.exports import ExportPart
from shared.errors import IntegrityError, UserError
from shared.layout import RunFolder
from workers.archiver.collect import RunFile

_FOLDER = ".staging"


@dataclass(frozen=True)
class StagedFile:
    """A file that stays as it is until the job ends, with its size and SHA-256."""

    path: Path
    key: str
    part: ExportPart
    num_bytes: int
    sha256: str


class FileGone(Exception):
    """A file went away while the picture was taken; take it again."""


class DamagedFile(IntegrityError):
    """A file of the run is not what it was when it was written."""

    def __init__(self, file: RunFile, num_bytes: int, sha256: str) -> None:
        self.file = file
        recorded = file.recorded
        assert recorded is not None
        super().__init__(
            f"{file.path} is damaged: it has {num_bytes} bytes with sha256 {sha256}, recorded are "
            f"{recorded.num_bytes} bytes with sha256 {recorded.sha256}. Restore it from an earlier "
            "export, or leave its part or its checkpoint out"
        )


class Staging:
    """One job's picture; make it with `open_staging`."""

    def __init__(self, root: Path, secrets: Sequence[bytes]) -> None:
        self.root = root
        self._secrets = secrets

    def take(self, file: RunFile) -> StagedFile:
        """Put `file` into the picture.

        Raises FileGone, DiskFullError, DamagedFile when it is not what the run's records say, and
        UserError for a settled text that holds a secret of this machine: such a file is never
        sent, and never changed either.
        """
        target = self.root / file.key
        with disk_faults(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
        try:
            if file.settled:
                num_bytes, sha256 = self._take_settled(file, target)
            else:
                num_bytes, sha256 = self._take_copy(file, target)
        except FileNotFoundError as error:
            raise FileGone(str(file.path)) from error
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise FileGone(f"{file.path}, now a symbolic link,") from error
        if file.recorded is not None and file.recorded != FileSum(num_bytes, sha256):
            raise DamagedFile(file, num_bytes, sha256)
        return StagedFile(target, file.key, file.part, num_bytes, sha256)

    def drop(self, file: StagedFile) -> None:
        """Take a file out of the picture again, once it is stored."""
        file.path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Start over with an empty picture."""
        for path in self.root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()

    def _take_settled(self, file: RunFile, target: Path) -> tuple[int, str]:
        try:
            os.link(file.path, target, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError:
            # A file system without hard links: a copy is as good, only slower.
            with disk_faults(target):
                shutil.copyfile(file.path, target, follow_symlinks=False)
        if target.is_symlink():
            raise FileNotFoundError(file.path)
        if file.is_text and self._secrets and _holds_secret(target, self._secrets):
            raise UserError(
                f"{file.key} holds the value of a secret from this machine's environment, so "
                "nothing was exported: remove it from the file, or change the secret"
            )
        return sha256_file(target)

    def _take_copy(self, file: RunFile, target: Path) -> tuple[int, str]:
        digest = hashlib.sha256()
        size = 0
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as source, disk_faults(target), target.open("wb") as copy:
            limit = os.fstat(source.fileno()).st_size
            chunks: Iterable[bytes] = _chunks(source, limit)
            if file.is_text:
                cut_lines = file.path.suffix in (".jsonl", ".log")
                chunks = (redact(line, self._secrets) for line in _lines(chunks, whole=cut_lines))
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                copy.write(chunk)
        return size, digest.hexdigest()


@contextmanager
def open_staging(folder: RunFolder, job: str, secrets: Sequence[bytes] = ()) -> Iterator[Staging]:
    """An empty picture for `job`; it and what dead jobs left are gone afterwards."""
    home = folder.root / _FOLDER
    root = home / job
    with disk_faults(root):
        home.mkdir(exist_ok=True)
        _remove_dead(home)
        root.mkdir(exist_ok=True)
        with (root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            staging = Staging(root, secrets)
            staging.clear()
            try:
                yield staging
            finally:
                shutil.rmtree(root, ignore_errors=True)


def _remove_dead(home: Path) -> None:
    for root in home.iterdir():
        try:
            with (root / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(root, ignore_errors=True)
        except (BlockingIOError, FileNotFoundError):
            continue  # alive, or being made or removed at this moment


def _chunks(source: Iterable[bytes], limit: int) -> Iterator[bytes]:
    left = limit
    while left > 0:
        chunk = source.read(min(HASH_CHUNK_BYTES, left))  # type: ignore[attr-defined]
        if not chunk:
            return
        left -= len(chunk)
        yield chunk


def _lines(chunks: Iterable[bytes], *, whole: bool) -> Iterator[bytes]:
    """Runs of whole lines; with `whole`, a last line without its newline is left out."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        end = rest.rfind(b"\n") + 1
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest and not whole:
        yield rest


def _holds_secret(path: Path, secrets: Sequence[bytes]) -> bool:
    with path.open("rb") as file:
        return any(
            contains_secret(run, secrets)
            for run in _lines(iter(lambda: file.read(HASH_CHUNK_BYTES), b""), whole=False)
        )
