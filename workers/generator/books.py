"""The generator's books beside the log: progress.json, done_index, failures.jsonl.

progress.json and done_index are derived from the log and replaced atomically after every append and
at every start, so they never claim more or less than the log holds. failures.jsonl keeps each
failed attempt with its cause; failed prompts are tried again at the end, once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from services.files import disk_faults, sync_file, write_file, write_json
from shared.errors import IntegrityError
from shared.layout import RunFolder
from workers.generator.log import CompletionLog


class Failure(msgspec.Struct, frozen=True):
    """One attempt that gave no completion. `final`: it will not be tried again."""

    prompt_index: int
    prompt_sha256: str
    slug: str
    cause: str
    attempt: int
    final: bool


@dataclass
class FailureBook:
    """failures.jsonl: appended durably, read at start."""

    folder: RunFolder

    def __post_init__(self) -> None:
        self._path = self.folder.completions / "failures.jsonl"
        self.latest: dict[int, Failure] = {}
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            with disk_faults(self._path), self._path.open("r+b") as file:
                file.truncate(end)
        for number, line in enumerate(data[:end].splitlines(), start=1):
            try:
                failure = msgspec.json.decode(line, type=Failure)
            except msgspec.MsgspecError as error:
                raise IntegrityError(f"{self._path}, line {number} is damaged: {error}") from error
            self.latest[failure.prompt_index] = failure

    def add(self, failure: Failure) -> None:
        """Append and fsync."""
        with disk_faults(self._path), self._path.open("ab") as file:
            file.write(msgspec.json.encode(failure) + b"\n")
            sync_file(file)
        self.latest[failure.prompt_index] = failure

    def final_indices(self) -> set[int]:
        """Prompts that are given up."""
        return {at for at, failure in self.latest.items() if failure.final}

    def attempts(self, prompt_index: int) -> int:
        """Attempts of a prompt that failed so far."""
        failure = self.latest.get(prompt_index)
        return failure.attempt if failure else 0


def write_books(
    folder: RunFolder, log: CompletionLog, *, num_prompts: int, num_failed: int, finished: bool
) -> None:
    """Bring progress.json and done_index up to what the log holds."""
    progress: dict[str, Any] = {
        "completions_done": log.next_seq,
        "completions_failed": num_failed,
        "completions_total": num_prompts,
        "output_tokens": log.num_output_tokens,
        "files": log.num_files,
        "finished": finished,
    }
    write_json(folder.completions / "progress.json", progress)
    write_file(folder.completions / "done_index", format_ranges(log.done))


@dataclass(frozen=True)
class EarlierBooks:
    """What earlier incarnations have put down; read before anything is written."""

    num_completions: int = 0
    finished: bool = False


def read_books(folder: RunFolder) -> EarlierBooks:
    """The least that the log must hold, and whether generation had been declared complete."""
    progress = folder.completions / "progress.json"
    written, sealed = _read_json(progress), _read_json(folder.dataset_json)
    try:
        segments = sealed["segments"] if sealed else []
        num_sealed = max((int(one["next_seq"]) for one in segments), default=0)
        if written is None:
            return EarlierBooks(num_sealed)
        num_written = int(written["completions_done"])
        return EarlierBooks(max(num_written, num_sealed), bool(written["finished"]))
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            f"{progress} or {folder.dataset_json} is damaged: {error!r}; restore it from an export"
        ) from error


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        with disk_faults(path):
            tree: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise IntegrityError(f"{path} is damaged: {error}; restore it from an export") from error
    return tree


def format_ranges(indices: Iterable[int]) -> str:
    """Prompt indices as lines 'first-last', both included: {0, 1, 2, 5} -> '0-2', '5-5'."""
    lines: list[str] = []
    first = last = None
    for index in sorted(indices):
        if first is None or last is None or index != last + 1:
            if first is not None:
                lines.append(f"{first}-{last}")
            first = index
        last = index
    if first is not None:
        lines.append(f"{first}-{last}")
    return "".join(f"{line}\n" for line in lines)


def parse_ranges(text: str) -> set[int]:
    """The reverse of format_ranges."""
    found: set[int] = set()
    for line in text.split():
        first, _, last = line.partition("-")
        found.update(range(int(first), int(last) + 1))
    return found
