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
from shared.api.events import CheckpointSaved
from shared.layout import CheckpointFolder, RunFolder

logger = logging.getLogger(__name__)


async def reconcile_checkpoints(database: Database, run_id: str, folder: RunFolder) -> None:
    """Make the ledger agree with the run's folder."""
    found = await asyncio.to_thread(complete_checkpoints, folder)
    known = await database.read(ledger.list_checkpoints, run_id)
    if {c.step for c in known} != {c.step for c in found}:
        await database.write(_enter, run_id, found, now=time.time())


def complete_checkpoints(folder: RunFolder) -> list[CheckpointSaved]:
    """Complete checkpoints of the run's folder by step, as the trainer would report them."""
    if not folder.checkpoints.is_dir():
        return []
    found = (_read(CheckpointFolder(path)) for path in folder.checkpoints.iterdir())
    return sorted((c for c in found if c is not None), key=lambda c: c.step)


def _read(checkpoint: CheckpointFolder) -> CheckpointSaved | None:
    step = checkpoint.step
    if step is None or not checkpoint.complete_marker.is_file():
        return None
    state = _read_state(checkpoint.root / "trainer_state.json")
    return CheckpointSaved(
        number=0,
        step=step,
        next_micro_batch_id=int(state.get("next_micro_batch_id", 0)),
        epoch=int(state.get("epoch", 0)),
        num_bytes=sum(p.stat().st_size for p in checkpoint.root.rglob("*") if p.is_file()),
        path=str(checkpoint.root),
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
