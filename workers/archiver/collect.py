"""Which files of a run belong to which part of an export.

    run folder + parts + checkpoints wanted -> [RunFile], in the order in which they leave

Nothing is read but names, sizes, and the records (COMPLETE, dataset.json) that say which sum a file
had when it was written. Symbolic links are never followed: a file that is
linked in from elsewhere is no file of the run, so it is left out and said so. Hidden names and
unfinished writes are nobody's files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from services.checkpoint_folders import CompleteCheckpoint, complete_checkpoints
from services.files import FileSum, disk_faults, is_temporary
from shared.api.exports import PART_ORDER, ExportPart
from shared.errors import IntegrityError, NotFoundError
from shared.layout import CheckpointFolder, RunFolder
from shared.manifest import JOURNAL_NAME, MANIFEST_NAME

CheckpointChoice = Literal["latest", "all"] | Sequence[int]
_NOT_EXPORTED = frozenset({MANIFEST_NAME, JOURNAL_NAME})
_TEXT_SUFFIXES = frozenset({".json", ".jsonl", ".log", ".md", ".txt", ".toml", ".jinja", ""})


@dataclass(frozen=True)
class RunFile:
    """A file of the run and the place it takes in an export.

    `settled` files never change once they are there; others are appended to or replaced, and must
    be snapshotted. `recorded` is what the run's own records say of the file, where they do.
    """

    path: Path
    key: str
    part: ExportPart
    settled: bool
    recorded: FileSum | None = None

    @property
    def group(self) -> str:
        """What is whole or worthless: the checkpoint's folder, or a file by itself."""
        parents = (
            parent for parent in self.path.parents if CheckpointFolder(parent).step is not None
        )
        return str(next(parents, self.path))

    @property
    def is_text(self) -> bool:
        return self.path.suffix in _TEXT_SUFFIXES


@dataclass
class Collection:
    """What was found; `notes` are for the person who asked."""

    files: list[RunFile] = field(default_factory=list)
    checkpoints: list[CompleteCheckpoint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def checkpoint_step(self) -> int | None:
        """Step of the drafter in `drafter/`: the newest of the chosen checkpoints."""
        return self.checkpoints[-1].step if self.checkpoints else None


def collect(
    folder: RunFolder, parts: Sequence[ExportPart], checkpoints: CheckpointChoice = "latest"
) -> Collection:
    """The run's files of `parts`; a step that is not there: NotFoundError names those that are.

    Before the first complete checkpoint the parts made from checkpoints are empty. IntegrityError
    for a record of the run that is damaged.
    """
    if not folder.root.is_dir():
        raise NotFoundError(f"the run folder {folder.root} does not exist")
    found = Collection()
    wanted = set(parts)
    if wanted & {"drafter", "checkpoints"}:
        found.checkpoints = choose_checkpoints(folder, checkpoints)
    for part in PART_ORDER:
        if part in wanted:
            found.files += _files_of_part(folder, part, found)
    return found


def choose_checkpoints(folder: RunFolder, choice: CheckpointChoice) -> list[CompleteCheckpoint]:
    """The complete checkpoints that `choice` means, oldest first."""
    there = complete_checkpoints(folder)
    if choice == "all":
        return there
    if choice == "latest":
        return there[-1:]
    steps = {checkpoint.step: checkpoint for checkpoint in there}
    missing = sorted(set(choice) - set(steps))
    if missing:
        raise NotFoundError(
            f"there is no complete checkpoint of step {', '.join(map(str, missing))}; complete "
            f"ones: {', '.join(map(str, steps)) or 'none'}"
        )
    return [steps[step] for step in sorted(steps) if step in choice]


def _files_of_part(folder: RunFolder, part: ExportPart, found: Collection) -> list[RunFile]:
    root = folder.root
    match part:
        case "metadata":
            top = _regular(root, found.notes, deep=False)
            inner = _regular(folder.evaluations, found.notes)
            return [
                RunFile(path, path.relative_to(root).as_posix(), part, settled=False)
                for path in (*top, *inner)
                if path.name not in _NOT_EXPORTED
            ]
        case "drafter":
            if not found.checkpoints:
                return []
            newest = found.checkpoints[-1]
            names = _names(newest.folder.drafter, newest.folder.root, found.notes)
            return [
                RunFile(newest.folder.root / name, name, part, True, newest.files.get(name))
                for name in names
            ]
        case "checkpoints":
            return [
                RunFile(
                    checkpoint.folder.root / name,
                    f"{checkpoint.folder.root.relative_to(root).as_posix()}/{name}",
                    part,
                    settled=True,
                    recorded=checkpoint.files.get(name),
                )
                for checkpoint in found.checkpoints
                for name in _marker_last(checkpoint, found.notes)
            ]
    start = {
        "logs": folder.logs,
        "quarantine": folder.quarantine,
        "dataset": folder.dataset,
        "completions": folder.completions,
    }[part]
    paths = list(_regular(start, found.notes))
    # The log of completions is appended to at its end only: all but its last file are settled.
    batches = sorted(path for path in paths if path.name.startswith("batch_"))
    settled = {path for path in paths if path.suffix == ".arrow"} | set(batches[:-1])
    sums = _shard_sums(folder) if part == "dataset" else {}
    return [
        RunFile(path, path.relative_to(root).as_posix(), part, path in settled, sums.get(path.name))
        for path in paths
    ]


def _shard_sums(folder: RunFolder) -> dict[str, FileSum]:
    """What dataset.json says of each shard; IntegrityError when it cannot be understood."""
    try:
        with disk_faults(folder.dataset_json):
            segments = json.loads(folder.dataset_json.read_bytes())["segments"]
        return {
            str(one["file"]): FileSum(int(one["num_bytes"]), str(one["sha256"])) for one in segments
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"{folder.dataset_json} is damaged ({error!r}): restore it from an earlier export, or "
            "leave the part 'dataset' out"
        ) from error


def _names(start: Path, root: Path, notes: list[str]) -> list[str]:
    return [path.relative_to(root).as_posix() for path in _regular(start, notes)]


def _marker_last(checkpoint: CompleteCheckpoint, notes: list[str]) -> list[str]:
    """A checkpoint's files; the copy is complete when its marker arrives, like the original."""
    folder = checkpoint.folder
    names = _names(folder.root, folder.root, notes)
    return sorted(names, key=lambda name: name == folder.complete_marker.name)


def _regular(start: Path, notes: list[str], *, deep: bool = True) -> Iterator[Path]:
    """Regular, visible files below `start` in a fixed order, links not followed."""
    if start.is_symlink():
        notes.append(f"{start.name} is a symbolic link and was left out")
        return
    if not start.is_dir():
        return
    for path in sorted(start.iterdir()):
        if path.name.startswith(".") or is_temporary(path.name):
            continue
        if path.is_symlink():
            notes.append(f"{path.name} in {start.name} is a symbolic link and was left out")
        elif path.is_dir():
            if deep:
                yield from _regular(path, notes)
        elif path.is_file():
            yield path
