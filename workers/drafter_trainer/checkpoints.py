"""Checkpoint folders: a checkpoint is complete or it does not count.

    .step_00000050.tmp/ -> drafter/, trainer_state.safetensors, trainer_state.json (each fsynced)
                        -> COMPLETE (names every file with size and SHA-256)
                        -> rename to step_00000050/

Invariants: a folder without COMPLETE, or whose files are not what COMPLETE says, is never loaded;
whatever fails while writing, earlier checkpoints are untouched and the temporary folder is gone
(one that a kill left behind is removed at the next start). Old checkpoints are removed only after a
newer one is complete. The sums are taken in the thread that writes, so no step waits for them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.checkpoint_folders import (
    CompleteCheckpoint,
    complete_checkpoints,
    inspect,
    look,
    marker_bytes,
)
from services.files import disk_faults, sync_file, sync_folder, write_file, write_json
from shared.errors import DiskFullError, IntegrityError
from shared.layout import CheckpointFolder, RunFolder

TENSORS = "trainer_state.safetensors"
STATE = "trainer_state.json"
_DAMAGED = "COMPLETE.damaged"


class Checkpoint(CompleteCheckpoint):
    """A complete checkpoint on disk, as the trainer reads it."""

    def read_state(self) -> dict[str, Any]:
        """The trainer's position and counters. IntegrityError when unreadable."""
        path = self.folder.root / STATE
        try:
            with disk_faults(path):
                state = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise IntegrityError(f"cannot read {path}: {error}") from error
        if not isinstance(state, dict):
            raise IntegrityError(f"cannot read {path}: it holds no JSON object")
        return state

    def read_tensors(self) -> dict[str, Tensor]:
        """The optimizer's tensors, on the CPU. IntegrityError when unreadable."""
        path = self.folder.root / TENSORS
        try:
            with disk_faults(path):
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
        """Remove temporary folders of a killed writer; incomplete checkpoints left, with why."""
        root = self.folder.checkpoints
        if not root.is_dir():
            return []
        for path in root.glob(".step_*.tmp"):
            shutil.rmtree(path)
        steps = (p for p in sorted(root.iterdir()) if CheckpointFolder(p).step is not None)
        looks = ((path.name, look(path)) for path in steps)
        return [f"{name} ({reason})" for name, reason in looks if isinstance(reason, str)]

    def complete(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest first. EnvironmentFault when they cannot be read."""
        found = complete_checkpoints(self.folder)
        return [Checkpoint(one.folder, one.step, one.files) for one in found]

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
                write_file(temporary.complete_marker, marker_bytes(temporary, step))
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
        return Checkpoint(written.folder, written.step, written.files)

    def set_aside(self, checkpoint: Checkpoint) -> None:
        """Take its marker: a damaged checkpoint counts no more, and its files stay to be looked at
        until the step is saved again."""
        with disk_faults(checkpoint.folder.root):
            checkpoint.folder.complete_marker.rename(checkpoint.folder.root / _DAMAGED)
            sync_folder(checkpoint.folder.root)

    def prune(self) -> list[int]:
        """Remove all but the newest `keep` complete checkpoints; the steps removed."""
        old = self.complete()[: -self.keep]
        for checkpoint in old:
            # Without its marker a half-removed folder no longer counts as a checkpoint.
            checkpoint.folder.complete_marker.unlink()
            shutil.rmtree(checkpoint.folder.root)
        return [checkpoint.step for checkpoint in old]


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
