"""Backups of the database, and the inventory of a store."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path

from fastapi import APIRouter, Response, status

from control_plane.http.documentation import problems
from control_plane.http.state import Mesh
from control_plane.routes.models import BackupView
from services.files import disk_faults

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


def _prune(folder: Path) -> None:
    for old in sorted(folder.glob("control_plane-*.sqlite"))[:-KEEP_BACKUPS]:
        old.unlink(missing_ok=True)
