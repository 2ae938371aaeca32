"""Removing files of a deleted run that are verified elsewhere.

A file goes only when a completed export lists it with the same size and SHA-256, and the object
is still at the export's destination with that size. What nobody has a copy of stays, and so does
the run's folder then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from control_plane.store.tables import Export
from services.files import sha256_file
from services.object_stores import open_store
from shared.errors import MeshError
from shared.layout import RunFolder
from shared.manifest import MANIFEST_NAME, ManifestFile, parse_manifest

logger = logging.getLogger(__name__)


async def remove_verified_files(folder: RunFolder, completed: Sequence[Export]) -> int:
    """Remove every file of `folder` that one of the exports holds; how many."""
    num_removed = 0
    for export in completed:
        try:
            held = await _held(export.destination)
        except MeshError as error:
            logger.warning("export %s proves nothing and frees nothing: %s", export.id, error)
            continue
        num_removed += await asyncio.to_thread(_remove_same, folder.root, held)
    await asyncio.to_thread(_remove_empty_folders, folder.root)
    return num_removed


async def _held(destination: str) -> list[ManifestFile]:
    """Files of the destination's manifest that are there with their size."""
    async with open_store(destination) as store:
        data = await store.read_bytes(MANIFEST_NAME)
        manifest = parse_manifest(data, source=f"{MANIFEST_NAME} at {destination}")
        held = []
        for file in manifest.files:
            info = await store.head(file.key)
            if info is not None and info.num_bytes == file.num_bytes:
                held.append(file)
        return held


def _remove_same(root: Path, held: Iterable[ManifestFile]) -> int:
    num_removed = 0
    for file in held:
        path = root / file.path
        if path.is_symlink() or not path.is_file() or path.stat().st_size != file.num_bytes:
            continue
        if sha256_file(path)[1] == file.sha256:
            path.unlink()
            num_removed += 1
    return num_removed


def _remove_empty_folders(root: Path) -> None:
    folders = [path for path in root.rglob("*") if path.is_dir() and not path.is_symlink()]
    for folder in [*sorted(folders, key=lambda p: len(p.parts), reverse=True), root]:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
