"""The target's folder, for every role that computes with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.builtin import target_folder
from services.target_models.identity import check_target
from workers.runtime.context import WorkerContext


async def checked_target(context: WorkerContext) -> Path:
    """The target's folder, known to be the one that the run began with.

    Raises TargetModelError, and IntegrityError for one that has changed.
    """
    folder = target_folder(context.config.target.path)
    await asyncio.to_thread(check_target, context.folder, folder)
    return folder
