"""One export, from a request to a verified manifest; and verification again.

    queued -> running: picture, transfer -> verifying: read back, manifest -> completed | failed
    a check of an export whose place holds a later one's manifest          -> superseded

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
from shared.api.exports import CHECKPOINT_PARTS, DEFAULT_PARTS, ExportPart
from shared.errors import IntegrityError, MeshError, NotFoundError
from shared.layout import RunFolder
from shared.manifest import MANIFEST_NAME, Manifest, ManifestFile, Superseded, parse_manifest
from workers.archiver.collect import CheckpointChoice
from workers.archiver.picture import Picture, take_picture
from workers.archiver.staging import Staging, open_staging
from workers.archiver.transfer import (
    Destination,
    Tally,
    Transfer,
    check_files,
    conflict_text,
    look_at,
    merge_files,
)

logger = logging.getLogger(__name__)
State = Literal["running", "verifying", "completed", "failed", "cancelled", "superseded"]


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
    ending: State = "completed"
    try:
        async with store:
            if order.kind == "verify":
                ending = await verify(store, order, status)
            else:
                with open_staging(folder, order.export_id, secrets) as staging:
                    await _export(order, store, folder, identity, status, staging)
    except MeshError as error:
        logger.error("export %s: %s", order.export_id, error)
        status.tally.problems.append(str(error))
    if status.tally.problems and ending == "completed":
        ending = "failed"
    status.enter(ending)


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
    _require_checkpoint(picture, order, folder)
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
        supersedes=there.superseded,
    )
    await transfer.remove_replaced(entries, there)
    await transfer.finish(manifest)
    status.manifest_sha256 = sha256_bytes(manifest.to_bytes())


async def verify(store: ObjectStore, order: ExportOrder, status: ExportStatus) -> State:
    """Read everything that the export's manifest lists back; problems go to the tally.

    'superseded' when a later manifest has taken its place: what that one lists is not looked at,
    since this export never vouched for it.
    """
    status.manifest_sha256 = order.manifest_sha256
    status.enter("verifying")
    manifest, sha256 = await read_manifest(store)
    tally = status.tally
    if order.manifest_sha256 not in (None, sha256):
        tally.problems.append(_superseded_text(store, manifest))
        return "superseded"
    tally.files_total = len(manifest.files)
    tally.bytes_total = manifest.total_bytes

    def count(file: ManifestFile) -> None:
        tally.files_done += 1
        tally.bytes_done += file.num_bytes

    tally.problems += await check_files(store, manifest.files, count)
    tally.conflicts += [
        conflict_text(file.path, file.stored_as) for file in manifest.files if file.stored_as
    ]
    status.manifest_sha256 = sha256
    return "completed"


async def read_manifest(store: ObjectStore) -> tuple[Manifest, str]:
    """The manifest at the store and its SHA-256; IntegrityError when there is none."""
    try:
        data = await store.read_bytes(MANIFEST_NAME)
    except NotFoundError:
        raise IntegrityError(f"there is no {MANIFEST_NAME} at {store.url}: export again") from None
    return parse_manifest(data, source=f"{MANIFEST_NAME} at {store.url}"), sha256_bytes(data)


def _superseded_text(store: ObjectStore, manifest: Manifest) -> str:
    if manifest.export_id is not None:
        return (
            f"superseded by export {manifest.export_id} of run {manifest.run_id}, whose manifest "
            f"is at {store.url} now: verify that one"
        )
    return (
        f"superseded by the continuous archive of run {manifest.run_id}, whose manifest is at "
        f"{store.url} now: export again to check what is there"
    )


def make_manifest(
    identity: RunIdentity,
    files: list[ManifestFile],
    *,
    export_id: str | None = None,
    checkpoint_step: int | None = None,
    supersedes: Superseded | None = None,
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
        supersedes=supersedes,
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


def _require_checkpoint(picture: Picture, order: ExportOrder, folder: RunFolder) -> None:
    """NotFoundError when a part made from checkpoints is wanted and there is none (any more)."""
    taken = {file.part for file in picture.files}
    absent = [part for part in order.include if part in CHECKPOINT_PARTS and part not in taken]
    if absent:
        raise NotFoundError(
            f"{folder.root} has no complete checkpoint to export the {' and '.join(absent)} from: "
            "export again when there is one, or include other parts only"
        )


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
