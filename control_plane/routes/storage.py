"""Backups of the database, and the inventory of a store."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Response, status
from sqlmodel import Session

from control_plane.http.documentation import problems
from control_plane.http.state import Mesh
from control_plane.routes.models import BackupView
from control_plane.store import ledger, runs
from services.files import disk_faults
from services.inventory import RunKnowledge, take_inventory
from services.object_stores import FileUrl, ensure_allowed, open_store, parse_store_url
from shared.api.inventory import InventoryView
from shared.errors import NotFoundError
from shared.layout import DataFolder
from shared.states import RunState

router = APIRouter(prefix="/v1", tags=["storage"])

KEEP_BACKUPS = 20


@router.post(
    "/backups",
    status_code=status.HTTP_202_ACCEPTED,
    summary="A consistent copy of the database, in the data folder",
    openapi_extra=problems(507),
)
async def make_backup(mesh: Mesh, response: Response) -> BackupView:
    now = time.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    target = mesh.settings.folder.backups / f"control_plane-{stamp}-{secrets.token_hex(3)}.sqlite"
    with disk_faults(target):
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        num_bytes = await mesh.database.backup(target)
        await asyncio.to_thread(_prune, target.parent)
    return BackupView(name=target.name, path=str(target), num_bytes=num_bytes, created_at=now)


@router.get(
    "/inventory",
    summary="Objects and bytes by prefix, compared with manifests and the ledger",
    openapi_extra=problems(400, 404, 502, 504, 507),
)
async def get_inventory(
    mesh: Mesh,
    url: Annotated[str, Query(max_length=2000, description="file:///folder or s3://bucket/prefix")],
    depth: Annotated[int, Query(ge=0, le=10, description="Folder levels of a prefix")] = 1,
) -> InventoryView:
    parsed = parse_store_url(url)
    ensure_allowed(url, mesh.settings.allowed_roots)
    if isinstance(parsed, FileUrl) and not await asyncio.to_thread(parsed.path.is_dir):
        raise NotFoundError(f"there is no folder {parsed.path}")
    known = await mesh.database.read(_run_knowledge, mesh.settings.folder)
    async with open_store(url) as store:
        return await take_inventory(store, depth=depth, runs=known)


def _run_knowledge(session: Session, folder: DataFolder) -> dict[str, RunKnowledge]:
    """What the database and the data folder know of each run."""
    known: dict[str, RunKnowledge] = {}
    for run in runs.list_in_states(session, RunState):
        blocked = run.state == RunState.BLOCKED.value
        known[run.id] = RunKnowledge(
            folder=folder.run(run.id),
            ledger={s.path: s.sha256 for s in ledger.list_segments(session, run.id)},
            bad_because=f"the run is blocked by a quality gate: {run.reason}" if blocked else None,
        )
    return known


def _prune(folder: Path) -> None:
    for old in sorted(folder.glob("control_plane-*.sqlite"))[:-KEEP_BACKUPS]:
        old.unlink(missing_ok=True)
