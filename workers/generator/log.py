"""The completions log: append-only JSONL files on the generator's own disk.

    append -> batch_000000.jsonl, batch_000001.jsonl, ... (`per_file` lines each, fsynced)
    read(seq) <- any position, also while it grows

`seq` is a completion's position; line seq % per_file of file seq // per_file. Invariants: what
`append` returned from survives a power cut; a line that a crash left half written is cut off at the
next start; a full file never changes again. One writer, in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from services.files import disk_faults, sync_file, sync_folder
from shared.errors import IntegrityError
from shared.layout import RunFolder
from shared.messages import Completion

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Completion)


class _LineFacts(msgspec.Struct):
    """The part of a line that opening the log needs."""

    seq: int
    prompt_index: int
    output_ids: list[int]


_facts_decoder = msgspec.json.Decoder(_LineFacts)


@dataclass(frozen=True)
class Appended:
    """What an append did: the new end, and the files that it filled."""

    next_seq: int
    closed_files: list[Path]


class CompletionLog:
    """The log of one run. `next_seq` is its end, `done` the prompt indices it holds."""

    def __init__(self, folder: RunFolder, per_file: int) -> None:
        """Open, cut a torn last line, and check the rest.

        IntegrityError when a file is missing or damaged elsewhere than at the end.
        """
        self._folder = folder
        self._per_file = per_file
        self.next_seq = 0
        self.num_output_tokens = 0
        self.num_cut_bytes = 0
        self.done: set[int] = set()
        self._cached: tuple[int, list[Completion]] = (-1, [])
        folder.completions.mkdir(parents=True, exist_ok=True)
        self._scan()

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
        data = b"".join(_encoder.encode(one) + b"\n" for one in part)
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
        try:
            lines = [_decoder.decode(line) for line in raw]
        except msgspec.MsgspecError as error:
            raise IntegrityError(f"{path} is damaged: {error}") from error
        self._cached = (index, lines)
        return lines

    def _scan(self) -> None:
        names = sorted(one.name for one in self._folder.completions.glob("batch_*.jsonl"))
        expected = [self._folder.completions_batch(at).name for at in range(len(names))]
        if names != expected:
            lost = next(name for name in expected if name not in names)
            raise IntegrityError(
                f"{self._folder.completions} lacks {lost}; the log has a hole. Restore that file "
                "from an export, or start a new run"
            )
        for index, name in enumerate(names):
            path = self._folder.completions / name
            is_last = index == len(names) - 1
            count = self._scan_file(path, is_last=is_last)
            if not is_last and count != self._per_file:
                raise IntegrityError(
                    f"{path} has {count} lines, but a file that others follow has {self._per_file}"
                )

    def _scan_file(self, path: Path, *, is_last: bool) -> int:
        with disk_faults(path):
            data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            if not is_last:
                raise IntegrityError(f"{path} ends in the middle of a line")
            self.num_cut_bytes += len(data) - end
            with disk_faults(path), path.open("r+b") as file:
                file.truncate(end)
                sync_file(file)
        lines = data[:end].splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                facts = _facts_decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise IntegrityError(f"{path}, line {number} is damaged: {error}") from error
            if facts.seq != self.next_seq:
                raise IntegrityError(
                    f"{path}, line {number} has seq {facts.seq}, expected {self.next_seq}"
                )
            self.next_seq += 1
            self.done.add(facts.prompt_index)
            self.num_output_tokens += len(facts.output_ids)
        return len(lines)
