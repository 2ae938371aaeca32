"""Which checkpoints of a run count, for processes that do not load torch.

A checkpoint counts when its COMPLETE marker is there and every file that the marker names has the
size it names. The trainer removes the marker first, so a folder that is going away stops counting.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from shared.layout import CheckpointFolder, RunFolder


@dataclass(frozen=True)
class CompleteCheckpoint:
    """A checkpoint that counted a moment ago; files relative to its folder, with sizes."""

    folder: CheckpointFolder
    step: int
    sizes: dict[str, int]


def complete_checkpoints(folder: RunFolder) -> list[CompleteCheckpoint]:
    """Complete checkpoints of a run, oldest first."""
    root = folder.checkpoints
    if not root.is_dir():
        return []
    found = [checkpoint for path in root.iterdir() if (checkpoint := _inspect(path))]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def is_complete(checkpoint: CompleteCheckpoint) -> bool:
    """Whether it still counts."""
    return _inspect(checkpoint.folder.root) == checkpoint


def _inspect(path: Path) -> CompleteCheckpoint | None:
    folder = CheckpointFolder(path)
    if folder.step is None or path.is_symlink():
        return None
    try:
        marker = json.loads(folder.complete_marker.read_text(encoding="utf-8"))
        sizes = {str(name): int(size) for name, size in marker["files"].items()}
        if any((path / name).stat().st_size != size for name, size in sizes.items()):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # no marker, or not one of ours: it does not count
    return CompleteCheckpoint(folder, folder.step, sizes)
