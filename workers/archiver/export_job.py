"""One export, from a request to a verified manifest; and verification again.

    queued -> running: picture, transfer -> verifying: read back, manifest -> completed | failed

A job is a process of its own at low priority, so it takes nothing from a training that goes on. It
may be killed at any moment: started again it continues, and what is there already and equal is not
sent again. A cancelled export gives its unfinished uploads up; whole files that arrived stay.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Literal, cast

from services.files import sha256_bytes
from services.object_stores import ObjectStore
from shared.api.exports import DEFAULT_PARTS, ExportPart
from shared.errors import IntegrityError, MeshError, NotFoundError
from shared.layout import RunFolder
from shared.manifest import MANIFEST_NAME, Manifest, ManifestFile, parse_manifest
from workers.archiver.collect import CheckpointChoice
from workers.archiver.picture import Picture, take_picture
from workers.archiver.staging import Staging, open_staging
from workers.archiver.transfer import (
    Destination,
    Tally,
    Transfer,
    check_files,
    look_at,
    merge_files,
)

logger = logging.getLogger(__name__)
State = Literal["running", "verifying", "completed", "failed", "cancelled"]


@dataclass(frozen=True)
class RunIdentity:
    """What a manifest says of the run."""

    run_id: str
    run_name: str
    config_sha256: str


@dataclass(frozen=True)
class ExportOrder:
    """What is wanted of an export or a verification."""

    export_id: str
    kind: Literal["export", "verify"]
    destination: str
    checkpoints: CheckpointChoice
    include: tuple[ExportPart, ...]
    manifest_sha256: str | None

    @classmethod
    def from_job(cls, job: dict[str, object]) -> ExportOrder:
        """The order in a worker's lease: an export with `checkpoints`, `include`, `verify_only`."""
        return cls(
            export_id=str(job["id"]),
            kind="verify" if job.get("verify_only") else "export",
            destination=str(job["destination"]),
            checkpoints=cast("CheckpointChoice", job.get("checkpoints") or "latest"),
            include=tuple(cast("Sequence[ExportPart]", job.get("include") or DEFAULT_PARTS)),
            manifest_sha256=cast("str | None", job.get("manifest_sha256")),
        )


@dataclass
class ExportStatus:
    """What the outside sees; `report` is called when the state changes."""

    report: Callable[[ExportStatus], None]
    tally: Tally
    state: State = "running"
    manifest_sha256: str | None = None

    def enter(self, state: State) -> None:
        self.state = state
        self.report(self)


async def run_order(
    order: ExportOrder,
    store: ObjectStore,
    folder: RunFolder,
    identity: RunIdentity,
    status: ExportStatus,
    secrets: Sequence[bytes] = (),
) -> None:
    """Carry the order out. Errors of the mesh end as state 'failed' with the reason in problems.

    Cancellation passes through and leaves what arrived, for the next attempt to go on from.
    """
    status.enter("running")
    try:
        async with store:
            if order.kind == "verify":
                await verify(store, order, status)
            else:
                with open_staging(folder, order.export_id, secrets) as staging:
                    await _export(order, store, folder, identity, status, staging)
    except MeshError as error:
        logger.error("export %s: %s", order.export_id, error)
        status.tally.problems.append(str(error))
    status.enter("failed" if status.tally.problems else "completed")


async def _export(
    order: ExportOrder,
    store: ObjectStore,
    folder: RunFolder,
    identity: RunIdentity,
    status: ExportStatus,
    staging: Staging,
) -> None:
    picture = await _picture_in_thread(folder, staging, order)
    tally = status.tally
    tally.files_total = len(picture.files)
    tally.bytes_total = sum(file.num_bytes for file in picture.files)
    for note in picture.notes:
        logger.warning("export %s: %s", order.export_id, note)
    there = await look_at(store, identity.run_id)
    transfer = Transfer(store, identity.run_id, tally, staging.drop)
    entries = await transfer.send(picture.files, there)
    status.enter("verifying")
    tally.problems += await transfer.verify()
    if tally.problems:
        return
    manifest = make_manifest(
        identity,
        merge_files(entries, there),
        export_id=order.export_id,
        checkpoint_step=drafter_step(picture, there),
    )
    await transfer.remove_replaced_drafter(entries, there)
    await transfer.finish(manifest, there)
    status.manifest_sha256 = sha256_bytes(manifest.to_bytes())


async def verify(store: ObjectStore, order: ExportOrder, status: ExportStatus) -> None:
    """Read everything that the manifest at the store lists back; problems go to the tally."""
    status.enter("verifying")
    manifest, sha256 = await read_manifest(store, order.manifest_sha256)
    tally = status.tally
    tally.files_total = len(manifest.files)
    tally.bytes_total = manifest.total_bytes

    def count(file: ManifestFile) -> None:
        tally.files_done += 1
        tally.bytes_done += file.num_bytes

    tally.problems += await check_files(store, manifest.files, count)
    tally.conflicts += [file.path for file in manifest.files if file.stored_as is not None]
    status.manifest_sha256 = sha256


async def read_manifest(store: ObjectStore, sha256: str | None) -> tuple[Manifest, str]:
    """The manifest of an export and its SHA-256.

    With `sha256`, the one that has it, also where another file held the name; a manifest that
    this run has replaced since by a newer one is as good. IntegrityError when there is none.
    """
    beside = f"{MANIFEST_NAME}.dflash-mesh-{sha256[:8]}" if sha256 else None
    for key in filter(None, (beside, MANIFEST_NAME)):
        try:
            data = await store.read_bytes(key)
        except NotFoundError:
            continue
        return parse_manifest(data, source=f"{key} at {store.url}"), sha256_bytes(data)
    raise IntegrityError(f"there is no {MANIFEST_NAME} at {store.url}: export again")


def make_manifest(
    identity: RunIdentity,
    files: list[ManifestFile],
    *,
    export_id: str | None = None,
    checkpoint_step: int | None = None,
) -> Manifest:
    """A manifest of now."""
    return Manifest(
        run_id=identity.run_id,
        run_name=identity.run_name,
        config_sha256=identity.config_sha256,
        program_version=program_version(),
        created_at=time.time(),
        export_id=export_id,
        checkpoint_step=checkpoint_step,
        files=files,
    )


def program_version() -> str:
    """Version of the installed distribution; 'source' when run from a checkout."""
    try:
        return metadata.version("dflash-mesh")
    except metadata.PackageNotFoundError:
        return "source"


def drafter_step(picture: Picture, there: Destination) -> int | None:
    """Step of the drafter at the destination: the picture's, or the one that was there."""
    if picture.checkpoint_step is not None:
        return picture.checkpoint_step
    return there.manifest.checkpoint_step if there.manifest else None


async def _picture_in_thread(folder: RunFolder, staging: Staging, order: ExportOrder) -> Picture:
    stop = threading.Event()
    try:
        return await asyncio.to_thread(
            take_picture,
            folder,
            staging,
            order.include,
            order.checkpoints,
            go_on=lambda: not stop.is_set(),
        )
    finally:
        stop.set()  # a cancelled picture ends at its next file
