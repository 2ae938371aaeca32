"""The completions log: append-only JSONL files on the generator's own disk.

    append -> batch_000000.jsonl, batch_000001.jsonl, ... (`per_file` lines each, fsynced)
    read(seq) <- any position, also while it grows

`seq` is a completion's position; line seq % per_file of file seq // per_file. Invariants: what
`append` returned from survives a power cut; a line that a crash left half written is cut off at the
next start; a full file never changes again; nothing is changed before the log is known to hold what
it must. One writer, in one process: the lock of the folder holds whatever else happens.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.files import disk_faults, sync_file, sync_folder
from shared.errors import IntegrityError, InUseError
from shared.layout import RunFolder
from shared.messages import Completion
from workers.generator.lines import decode_line, encode_line

_RESTORE = "restore that file from an export, or start a new run"


@dataclass(frozen=True)
class Appended:
    """What an append did: the new end, and the files that it filled."""

    next_seq: int
    closed_files: list[Path]


class CompletionLog:
    """The log of one run. `next_seq` is its end, `done` the prompt indices it holds."""

    def __init__(self, folder: RunFolder, per_file: int, *, at_least: int = 0) -> None:
        """Open, check, and cut a torn last line; `close` gives the folder back.

        `at_least`: how many completions the books say there are. IntegrityError when there are
        fewer, or a file is missing or damaged elsewhere than at the end; InUseError when another
        generator has the log open.
        """
        self._folder = folder
        self._per_file = per_file
        self.next_seq = 0
        self.num_output_tokens = 0
        self.num_cut_bytes = 0
        self.done: set[int] = set()
        self._cached: tuple[int, list[Completion]] = (-1, [])
        self._lock: int | None = None
        with disk_faults(folder.completions):
            folder.completions.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(folder.completions / ".lock")
        try:
            self._scan(at_least)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let another generator have the log. The end of the process does the same."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def num_files(self) -> int:
        """Files with at least one line."""
        return -(-self.next_seq // self._per_file)

    def closed_files(self) -> list[Path]:
        """Files that are full."""
        return [self._folder.completions_batch(at) for at in range(self.next_seq // self._per_file)]

    def append(self, completions: Sequence[Completion]) -> Appended:
        """Write completions at the end and fsync; each must carry its own `seq`.

        DiskFullError or EnvironmentFault leave the log as it was.
        """
        closed: list[Path] = []
        at = 0
        while at < len(completions):
            room = self._per_file - self.next_seq % self._per_file
            part = completions[at : at + room]
            path = self._folder.completions_batch(self.next_seq // self._per_file)
            self._append_to(path, part)
            at += len(part)
            if self.next_seq % self._per_file == 0:
                closed.append(path)
        return Appended(self.next_seq, closed)

    def read(self, seq: int, limit: int) -> list[Completion]:
        """Up to `limit` completions from `seq` on; empty at the end."""
        found: list[Completion] = []
        while len(found) < limit and seq < self.next_seq:
            lines = self._lines(seq // self._per_file)
            start = seq % self._per_file
            part = lines[start : start + limit - len(found)]
            found.extend(part)
            seq += len(part)
        return found

    def _append_to(self, path: Path, part: Sequence[Completion]) -> None:
        for offset, completion in enumerate(part):
            assert completion.seq == self.next_seq + offset, "completions must be appended in order"
        data = b"".join(encode_line(one) + b"\n" for one in part)
        is_new = not path.exists()
        with disk_faults(path):
            size = 0 if is_new else path.stat().st_size
            with path.open("ab") as file:
                try:
                    file.write(data)
                    sync_file(file)
                except BaseException:
                    file.truncate(size)
                    raise
        if is_new:
            sync_folder(path.parent)
        self.next_seq += len(part)
        self.done.update(one.prompt_index for one in part)
        self.num_output_tokens += sum(len(one.output_ids) for one in part)

    def _lines(self, index: int) -> list[Completion]:
        """The lines of one file that are part of the log; full files are decoded once."""
        held, lines = self._cached
        wanted = min(self._per_file, self.next_seq - index * self._per_file)
        if held == index and len(lines) >= wanted:
            return lines[:wanted]
        path = self._folder.completions_batch(index)
        with disk_faults(path):
            raw = path.read_bytes().split(b"\n")[:wanted]
        lines = [_decode(path, number, line) for number, line in enumerate(raw, start=1)]
        self._cached = (index, lines)
        return lines

    def _scan(self, at_least: int) -> None:
        names = sorted(one.name for one in self._folder.completions.glob("batch_*.jsonl"))
        expected = [self._folder.completions_batch(at).name for at in range(len(names))]
        if names != expected:
            lost = next(name for name in expected if name not in names)
            raise IntegrityError(
                f"{self._folder.completions} lacks {lost}; the log has a hole: {_RESTORE}"
            )
        torn_at: int | None = None
        for index, name in enumerate(names):
            path = self._folder.completions / name
            is_last = index == len(names) - 1
            count, torn_at = self._scan_file(path, is_last=is_last)
            if not is_last and count != self._per_file:
                raise IntegrityError(
                    f"{path} has {count} lines, but a file that others follow has {self._per_file}"
                )
        if self.next_seq < at_least:
            raise IntegrityError(
                f"{self._folder.completions} holds {self.next_seq} completions in {len(names)} "
                f"batch files, but {at_least} were written (progress.json, dataset.json): files of "
                "the log are lost. Restore batch_*.jsonl from an export, train on the sealed data "
                "set in a new run (data.dataset), or start a new run"
            )
        if torn_at is not None:
            _cut(self._folder.completions / names[-1], torn_at)

    def _scan_file(self, path: Path, *, is_last: bool) -> tuple[int, int | None]:
        """Number of whole lines, and where a torn last one begins."""
        with disk_faults(path):
            data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        is_torn = end < len(data)
        if is_torn and not is_last:
            raise IntegrityError(f"{path} ends in the middle of a line: {_RESTORE}")
        self.num_cut_bytes += len(data) - end
        lines = data[:end].splitlines()
        for number, line in enumerate(lines, start=1):
            found = _decode(path, number, line)
            if found.seq != self.next_seq:
                raise IntegrityError(
                    f"{path}, line {number} has seq {found.seq}, expected {self.next_seq}"
                )
            self.next_seq += 1
            self.done.add(found.prompt_index)
            self.num_output_tokens += len(found.output_ids)
        return len(lines), end if is_torn else None


def _decode(path: Path, number: int, line: bytes) -> Completion:
    try:
        return decode_line(line)
    except IntegrityError as error:
        raise IntegrityError(f"{path}, line {number} is damaged: {error}; {_RESTORE}") from error


def _cut(path: Path, size: int) -> None:
    with disk_faults(path), path.open("r+b") as file:
        file.truncate(size)
        sync_file(file)


def _lock(path: Path) -> int:
    """A descriptor that holds the lock; the system takes it back with the process."""
    with disk_faults(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise InUseError(
                f"another generator has the completions log {path.parent} open; it must end first"
            ) from error
        except OSError:
            os.close(descriptor)
            raise
    return descriptor
