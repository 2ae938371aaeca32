"""Checkpoints on the disk that the ledger does not know.

A trainer that drained while no control plane listened wrote a checkpoint and could not report it.
When a run is taken up again its folder is looked through, and complete checkpoints are entered;
ledger rows whose folder is gone are marked as removed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

from sqlmodel import Session

from control_plane.store import Database, ledger
from services.checkpoint_folders import CompleteCheckpoint, complete_checkpoints
from shared.api.events import CheckpointSaved
from shared.layout import RunFolder

logger = logging.getLogger(__name__)


async def reconcile_checkpoints(database: Database, run_id: str, folder: RunFolder) -> None:
    """Make the ledger agree with the run's folder."""
    found = await asyncio.to_thread(_reports, folder)
    known = await database.read(ledger.list_checkpoints, run_id)
    if {c.step for c in known} != {c.step for c in found}:
        await database.write(_enter, run_id, found, now=time.time())


def _reports(folder: RunFolder) -> list[CheckpointSaved]:
    """Complete checkpoints of the run's folder by step, as the trainer would report them."""
    return [_report(checkpoint) for checkpoint in complete_checkpoints(folder)]


def _report(checkpoint: CompleteCheckpoint) -> CheckpointSaved:
    state = _read_state(checkpoint.folder.root / "trainer_state.json")
    return CheckpointSaved(
        number=0,
        step=checkpoint.step,
        next_micro_batch_id=int(state.get("next_micro_batch_id", 0)),
        epoch=int(state.get("epoch", 0)),
        num_bytes=checkpoint.num_bytes,
        path=str(checkpoint.folder.root),
    )


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        logger.warning("cannot read %s: %s", path, error)
        return {}
    return state if isinstance(state, dict) else {}


def _enter(session: Session, run_id: str, found: list[CheckpointSaved], *, now: float) -> None:
    for checkpoint in found:
        ledger.add_checkpoint(session, run_id, checkpoint, now=now)
    steps = {checkpoint.step for checkpoint in found}
    for known in ledger.list_checkpoints(session, run_id):
        if known.step not in steps:
            ledger.remove_checkpoint(session, run_id, known.step, now=now)
