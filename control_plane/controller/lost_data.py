"""What the ledger knows of a run against what its folder still has.

A run whose folder was removed between two starts must not be made again from nothing without a
word: it would train other data under the same name. A folder that cannot be read is no such case;
it is a fault of the machine, and the run waits for it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlmodel import Session

from control_plane.store import Database, ledger, runs
from services.files import disk_faults
from shared.layout import RunFolder


async def find_lost_data(database: Database, run_id: str, folder: RunFolder) -> str | None:
    """Why the run cannot go on, or None. EnvironmentFault when its folder cannot be read."""
    known = await database.read(_known, run_id)
    return await asyncio.to_thread(lost_data, known, folder)


def lost_data(known: dict[str, int], folder: RunFolder) -> str | None:
    """`known`: how many checkpoints, segments and completions the ledger has; blocking."""
    homes = {
        "checkpoints": folder.checkpoints,
        "segments": folder.dataset,
        "completions": folder.completions,
    }
    gone = [homes[kind] for kind, count in known.items() if count and not _exists(homes[kind])]
    if not gone:
        return None
    counts = ", ".join(f"{count} {kind}" for kind, count in known.items() if count)
    what = ", ".join(map(str, gone)) if _exists(folder.root) else f"the run folder {folder.root}"
    return (
        f"the ledger knows {counts}, but {what} is gone: restore it (from an export, or the "
        "archive) and resume, or delete the run"
    )


def _known(session: Session, run_id: str) -> dict[str, int]:
    progress = runs.get(session, run_id).progress
    return {
        "checkpoints": len(ledger.list_checkpoints(session, run_id)),
        "segments": len(ledger.list_segments(session, run_id)),
        "completions": int(progress.get("completions_done") or 0),
    }


def _exists(path: Path) -> bool:
    with disk_faults(path):
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True
