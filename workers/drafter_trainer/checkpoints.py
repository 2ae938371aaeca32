"""Checkpoint folders: a checkpoint is complete or it does not count.

    .step_00000050.tmp/ -> drafter/, trainer_state.safetensors, trainer_state.json (each fsynced)
                        -> COMPLETE (names every file with its size) -> rename to step_00000050/

Invariants: a folder without COMPLETE, or whose files have other sizes than COMPLETE says, is never
loaded; whatever fails while writing, earlier checkpoints are untouched and the temporary folder is
gone (one that a kill left behind is removed at the next start). Old checkpoints are removed only
after a newer one is complete.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.files import disk_faults, sync_file, sync_folder, write_json
from shared.errors import DiskFullError, IntegrityError
from shared.layout import CheckpointFolder, RunFolder

logger = logging.getLogger(__name__)
TENSORS = "trainer_state.safetensors"
STATE = "trainer_state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    folder: CheckpointFolder
    step: int
    num_bytes: int

    def read_state(self) -> dict[str, Any]:
        """The trainer's position and counters. IntegrityError when unreadable."""
        path = self.folder.root / STATE
        try:
            state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise IntegrityError(f"cannot read {path}: {error}") from error
        return state

    def read_tensors(self) -> dict[str, Tensor]:
        """The optimizer's tensors, on the CPU. IntegrityError when unreadable."""
        path = self.folder.root / TENSORS
        try:
            tensors: dict[str, Tensor] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise IntegrityError(f"cannot read {path}: {error}") from error
        return tensors


class CheckpointStore:
    """The checkpoints of one run; used by one trainer at a time."""

    def __init__(self, folder: RunFolder, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def clean(self) -> list[str]:
        """Remove temporary folders of a killed writer; names of incomplete checkpoints left."""
        root = self.folder.checkpoints
        if not root.is_dir():
            return []
        for path in root.glob(".step_*.tmp"):
            shutil.rmtree(path)
        complete = {checkpoint.folder.root for checkpoint in self.complete()}
        steps = (p for p in root.iterdir() if CheckpointFolder(p).step is not None)
        return sorted(path.name for path in steps if path not in complete)

    def complete(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest first."""
        root = self.folder.checkpoints
        if not root.is_dir():
            return []
        found = [checkpoint for path in root.iterdir() if (checkpoint := inspect(path))]
        return sorted(found, key=lambda checkpoint: checkpoint.step)

    def newest(self) -> Checkpoint | None:
        complete = self.complete()
        return complete[-1] if complete else None

    def write(
        self,
        step: int,
        state: dict[str, Any],
        tensors: dict[str, Tensor],
        save_drafter: Callable[[Path], None],
    ) -> Checkpoint:
        """Write the checkpoint of `step`, replacing an incomplete one of that name.

        tensors: contiguous CPU tensors that nobody changes meanwhile. save_drafter: writes the
        exported drafter into the folder it is given. Raises DiskFullError, EnvironmentFault.
        """
        final = self.folder.checkpoint(step)
        temporary = CheckpointFolder(final.root.parent / f".{final.root.name}.tmp")
        try:
            with disk_faults(final.root):
                shutil.rmtree(temporary.root, ignore_errors=True)
                temporary.root.mkdir(parents=True)
                with _tensor_faults(temporary.root):
                    save_drafter(temporary.drafter)
                    save_file(tensors, temporary.root / TENSORS)
                with (temporary.root / TENSORS).open("rb") as file:
                    sync_file(file)
                write_json(temporary.root / STATE, state)
                write_json(temporary.complete_marker, {"step": step, "files": _sizes(temporary)})
                sync_folder(temporary.root)
                if final.root.exists():
                    shutil.rmtree(final.root)
                temporary.root.rename(final.root)
                sync_folder(final.root.parent)
        except BaseException:
            shutil.rmtree(temporary.root, ignore_errors=True)
            raise
        written = inspect(final.root)
        if written is None:
            raise IntegrityError(f"checkpoint {final.root} is incomplete right after writing it")
        return written

    def prune(self) -> list[int]:
        """Remove all but the newest `keep` complete checkpoints; the steps removed."""
        old = self.complete()[: -self.keep]
        for checkpoint in old:
            # Without its marker a half-removed folder no longer counts as a checkpoint.
            checkpoint.folder.complete_marker.unlink()
            shutil.rmtree(checkpoint.folder.root)
        return [checkpoint.step for checkpoint in old]


def inspect(path: Path) -> Checkpoint | None:
    """The complete checkpoint at `path`, or None when it is not one."""
    folder = CheckpointFolder(path)
    step = folder.step
    if step is None or not folder.complete_marker.is_file():
        return None
    try:
        files = json.loads(folder.complete_marker.read_text(encoding="utf-8"))["files"]
        sizes = {name: (path / name).stat().st_size for name in files}
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("checkpoint %s does not count: %s", path, error)
        return None
    if sizes != files:
        wrong = sorted(name for name in files if sizes[name] != files[name])
        logger.warning("checkpoint %s does not count: other size of %s", path, ", ".join(wrong))
        return None
    return Checkpoint(folder, step, sum(sizes.values()))


def _sizes(folder: CheckpointFolder) -> dict[str, int]:
    files = sorted(path for path in folder.root.rglob("*") if path.is_file())
    return {path.relative_to(folder.root).as_posix(): path.stat().st_size for path in files}


@contextmanager
def _tensor_faults(path: Path) -> Iterator[None]:
    """The tensor library wraps the system's errors; only its text says that the disk is full."""
    try:
        yield
    except SafetensorError as error:
        if "No space left" in str(error) or "os error 28" in str(error):
            raise DiskFullError(
                f"no space left for {path}: free some space on that disk, then resume"
            ) from error
        raise
