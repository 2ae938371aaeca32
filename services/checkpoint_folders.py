"""Which checkpoints of a run count, and whether they still are what was written. No torch.

COMPLETE names every file of the checkpoint with its size and SHA-256. A checkpoint counts when the
marker is there and every file has the size it names; that costs nothing. Whoever loads or exports
one compares the sums, too: `verify`. The trainer removes the marker first, so a folder that is
going away stops counting. A folder that cannot be read is a fault of the machine, never "no
checkpoint".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.files import FileSum, check_sum, disk_faults, file_sum
from shared.errors import IntegrityError, NotFoundError
from shared.layout import CheckpointFolder, RunFolder


@dataclass(frozen=True)
class CompleteCheckpoint:
    """A checkpoint that counted a moment ago; files relative to its folder."""

    folder: CheckpointFolder
    step: int
    files: dict[str, FileSum]

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self.files.values())

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Read the files (all, or `names`) and compare their sums; blocking.

        IntegrityError names the first file that is not what was written, EnvironmentFault one that
        cannot be read.
        """
        for name in sorted(self.files) if names is None else names:
            check_sum(self.folder.root / name, self.files[name], self.folder.complete_marker)

    def verify_drafter(self) -> None:
        """`verify` for the files of the drafter alone."""
        self.verify(sorted(name for name in self.files if name.startswith("drafter/")))


def complete_checkpoints(folder: RunFolder) -> list[CompleteCheckpoint]:
    """Complete checkpoints of a run, oldest first. EnvironmentFault when they cannot be read."""
    with disk_faults(folder.checkpoints):
        try:
            paths = list(folder.checkpoints.iterdir())
        except FileNotFoundError:
            return []
        found = [checkpoint for path in paths if (checkpoint := inspect(path))]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def find_checkpoint(folder: RunFolder, step: int | None) -> CompleteCheckpoint:
    """The complete checkpoint of `step`, or the newest one. NotFoundError names those there are."""
    there = complete_checkpoints(folder)
    found = [one for one in there if step is None or one.step == step]
    if found:
        return found[-1]
    if not there:
        raise NotFoundError(f"there is no complete checkpoint in {folder.checkpoints}")
    known = ", ".join(str(one.step) for one in there)
    raise NotFoundError(
        f"checkpoint {folder.checkpoint(step or 0).root} is not there, or not complete; "
        f"complete are those of step {known}"
    )


def is_complete(checkpoint: CompleteCheckpoint) -> bool:
    """Whether it still counts."""
    return inspect(checkpoint.folder.root) == checkpoint


def marker_bytes(folder: CheckpointFolder, step: int) -> bytes:
    """The content of COMPLETE for the files that lie in `folder` now; reads them all."""
    files: dict[str, Any] = {
        path.relative_to(folder.root).as_posix(): {"num_bytes": one.num_bytes, "sha256": one.sha256}
        for path in sorted(folder.root.rglob("*"))
        if path.is_file()
        for one in (file_sum(path),)
    }
    return (json.dumps({"step": step, "files": files}, indent=2) + "\n").encode()


def inspect(path: Path) -> CompleteCheckpoint | None:
    """The complete checkpoint at `path`, or None. EnvironmentFault when it cannot be read."""
    found = look(path)
    return found if isinstance(found, CompleteCheckpoint) else None


def look(path: Path) -> CompleteCheckpoint | str:
    """The complete checkpoint at `path`, or why it does not count."""
    folder = CheckpointFolder(path)
    if folder.step is None or path.is_symlink():
        return "it is no checkpoint folder"
    with disk_faults(path):
        try:
            files = _sums(folder.complete_marker.read_bytes())
            sizes = {name: (path / name).stat().st_size for name in files}
        except (FileNotFoundError, NotADirectoryError) as error:
            return f"{error.filename} is missing"
        except IntegrityError as error:
            return str(error)
    wrong = sorted(name for name, size in sizes.items() if size != files[name].num_bytes)
    if wrong:
        return f"other size of {', '.join(wrong)}"
    return CompleteCheckpoint(folder, folder.step, files)


def _sums(marker: bytes) -> dict[str, FileSum]:
    try:
        files = json.loads(marker)["files"]
        return {
            str(name): FileSum(int(one["num_bytes"]), str(one["sha256"]))
            for name, one in files.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"its COMPLETE is damaged: {error!r}") from error
