"""Take a consistent picture of a run that may be going on.

The data set's index is taken before its shards and decides which of them belong; a checkpoint
that the trainer removes meanwhile makes the picture start over with the checkpoints there are
then. Both keep an export whole without stopping anybody.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.checkpoint_folders import is_complete
from shared.api.exports import ExportPart
from shared.errors import EnvironmentFault
from shared.layout import RunFolder
from workers.archiver.collect import CheckpointChoice, Collection, RunFile, collect
from workers.archiver.staging import DamagedFile, FileGone, StagedFile, Staging

logger = logging.getLogger(__name__)
_ATTEMPTS = 5


@dataclass(frozen=True)
class Picture:
    """Staged files in the order in which they leave."""

    files: list[StagedFile]
    checkpoint_step: int | None  # of the drafter in the picture, if there is one
    notes: list[str]


def take_picture(
    folder: RunFolder,
    staging: Staging,
    parts: Sequence[ExportPart],
    checkpoints: CheckpointChoice,
    *,
    go_on: Callable[[], bool] = lambda: True,
    wanted: Callable[[RunFile], bool] = lambda file: True,
) -> Picture:
    """Blocking: call it in a thread. `go_on` is asked before every file; InterruptedError if not.

    `wanted` narrows the files of the parts down.

    Raises NotFoundError (a checkpoint that is not there), UserError (a secret in a settled text),
    DamagedFile (not what the run's records say), DiskFullError, EnvironmentFault (files keep going
    away).
    """
    for _ in range(_ATTEMPTS):
        found = collect(folder, parts, checkpoints)
        found.files = [file for file in found.files if wanted(file)]
        try:
            files = _take_all(folder, staging, found, go_on)
        except FileGone as gone:
            logger.info("%s went away while the export was prepared: looking again", gone)
            staging.clear()
            continue
        except DamagedFile:
            if _still_there(found):
                raise
            staging.clear()  # the trainer has removed or replaced the checkpoint meanwhile
            continue
        if _still_there(found):
            has_drafter = any(file.part == "drafter" for file in files)
            return Picture(files, found.checkpoint_step if has_drafter else None, found.notes)
        logger.info("a checkpoint went away while the export was prepared: looking again")
        staging.clear()
    raise EnvironmentFault(
        f"the files of {folder.root} keep going away while they are read: is another program "
        "removing them?"
    )


def _still_there(found: Collection) -> bool:
    return all(is_complete(checkpoint) for checkpoint in found.checkpoints)


def _take_all(
    folder: RunFolder, staging: Staging, found: Collection, go_on: Callable[[], bool]
) -> list[StagedFile]:
    index = next((file for file in found.files if file.path == folder.dataset_json), None)
    staged: dict[str, StagedFile] = {}
    members: set[str] | None = None
    if index is not None:
        staged[index.key] = staging.take(index)
        members = _members(staged[index.key])
    for file in found.files:
        if not go_on():
            raise InterruptedError("the export was cancelled")
        if file is index or _is_unlisted_shard(file, members):
            continue
        try:
            staged[file.key] = staging.take(file)
        except FileGone:
            # A checkpoint must be whole; of the rest, a file that is gone is no file of the run.
            if file.part in ("checkpoints", "drafter"):
                raise
    return [staged[file.key] for file in found.files if file.key in staged]


def _members(index: StagedFile) -> set[str] | None:
    """Names of the shards that the index lists; None when it lists none in a known way."""
    try:
        segments = json.loads(index.path.read_text(encoding="utf-8"))["segments"]
        return {str(segment["file"]) for segment in segments}
    except (ValueError, KeyError, TypeError):
        return None


def _is_unlisted_shard(file: RunFile, members: set[str] | None) -> bool:
    return members is not None and file.path.suffix == ".arrow" and file.path.name not in members
