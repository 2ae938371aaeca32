"""Archiving a run while it goes on.

    announcement on link `files`, or SCAN_S -> pass: settled files not archived yet -> transfer
    every REFRESH_S, and at drain           -> pass with the files that change, too

The queue is the run folder itself: what is not in the manifest at the destination yet. So it is
bounded by the disk, survives every restart, and an outage of the store only makes it longer; a
failed pass is tried again at the next one and never stops the run. A file that is not what the
run's records say is never sent (a sound copy may be there already): it is named in `problem`, and
the others go on. Every pass ends with read-back
and a manifest, so the destination is a verified copy at all times.

Without a destination only the run folder's own documents are kept true: manifest.json,
PROGRESS.md, hardware.json.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.files import sha256_file, write_file
from services.object_stores import open_store
from shared.api.exports import PART_ORDER
from shared.errors import EnvironmentFault, IntegrityError, MeshError
from shared.layout import RunFolder
from shared.manifest import ManifestFile, parse_manifest
from shared.messages import FileClosed
from workers.archiver.collect import RunFile, collect
from workers.archiver.documents import ArchiveFacts, write_progress
from workers.archiver.export_job import RunIdentity, drafter_step, make_manifest
from workers.archiver.picture import Picture, take_picture
from workers.archiver.staging import DamagedFile, Staging, open_staging
from workers.archiver.transfer import Tally, Transfer, look_at, merge_files

logger = logging.getLogger(__name__)

SCAN_S = 5.0
REFRESH_S = 60.0
_STAGING_JOB = "continuous"
# A pass takes at most so much, so that small new files never wait long behind large ones.
PASS_BYTES = 8 * 2**30


@dataclass(frozen=True)
class _Stamp:
    """What tells a file from its later self."""

    num_bytes: int
    modified_ns: int


@dataclass
class ArchiveState:
    """How far the archive is; read by heartbeats and PROGRESS.md."""

    archived: dict[str, ManifestFile] = field(default_factory=dict)
    bytes_sent: int = 0
    backlog_files: int = 0
    backlog_bytes: int = 0
    problem: str | None = None

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.archived.values())


class ContinuousArchive:
    """One run's archive; `run_pass` does one round and never raises for an outage."""

    def __init__(
        self,
        folder: RunFolder,
        identity: RunIdentity,
        destination: str | None,
        secrets: Sequence[bytes] = (),
    ) -> None:
        self.state = ArchiveState()
        self._folder = folder
        self._identity = identity
        self._destination = destination
        self._secrets = secrets
        self._sums: dict[str, tuple[_Stamp, str]] = {}
        self._damaged: dict[str, str] = {}  # RunFile.group -> what is wrong
        self._written_manifest: frozenset[ManifestFile] | None = None
        self._refreshed_at = 0.0
        self._looked = False
        self._drafter_problem: str | None = None
        self._held_up: str | None = None

    async def run_pass(self, *, everything: bool = False) -> None:
        """Archive what is settled; with `everything`, or after REFRESH_S, what changes too.

        Nothing that goes wrong here stops the run: what is held up is tried again.
        """
        refresh = everything or time.monotonic() - self._refreshed_at > REFRESH_S
        if self._destination is not None:
            try:
                while not await self._send(
                    self._destination, refresh=refresh, everything=everything
                ):
                    pass  # a damaged file was found: again, without it
            except MeshError as error:
                # The folder is the queue: the next pass finds the same files.
                if self.state.problem != str(error):
                    logger.warning("archiving is held up: %s", error)
                self.state.problem = str(error)
            else:
                if self.state.problem is not None and not self._damaged:
                    logger.info("archiving goes on")
                damage = next(iter(self._damaged.values()), None)
                self.state.problem = damage or self._drafter_problem
        await self._keep_documents()
        if refresh:
            self._refreshed_at = time.monotonic()

    async def _keep_documents(self) -> None:
        """The folder's own documents; a disk that takes them no more must not end the run."""
        try:
            await asyncio.to_thread(self._write_documents)
        except (EnvironmentFault, OSError) as error:
            if self._held_up != str(error):
                logger.warning("manifest and PROGRESS.md are not up to date: %s", error)
            self._held_up = str(error)
        else:
            self._held_up = None

    def heard(self, closed: FileClosed) -> None:
        """A worker has closed a file and summed it: no need to sum it again."""
        path = self._folder.root / closed.path
        try:
            status = path.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        if status.st_size == closed.num_bytes:
            stamp = _Stamp(status.st_size, status.st_mtime_ns)
            self._sums.setdefault(closed.path, (stamp, closed.sha256))

    async def _send(self, destination: str, *, refresh: bool, everything: bool) -> bool:
        """One transfer; False when a file turned out damaged, which is left out from then on."""
        if not self._looked:
            async with open_store(destination) as store:
                there = await look_at(store, self._identity.run_id)
            self.state.archived = {file.path: file for file in merge_files([], there)}
            self._looked = True
        found = await asyncio.to_thread(self._look, refresh)
        if not found:
            return True
        batch = found if everything else _first_bytes(found, PASS_BYTES)
        with open_staging(self._folder, _STAGING_JOB, self._secrets) as staging:
            async with open_store(destination) as store:
                try:
                    picture = await asyncio.to_thread(self._stage, staging, batch)
                except DamagedFile as error:
                    logger.error("left out of the archive: %s", error)
                    self._damaged[error.file.group] = str(error)
                    return False
                there = await look_at(store, self._identity.run_id)
                tally = Tally()
                transfer = Transfer(store, self._identity.run_id, tally, staging.drop)
                entries = await transfer.send(picture.files, there)
                self.state.bytes_sent += tally.bytes_sent
                problems = await transfer.verify()
                if problems:
                    raise IntegrityError(f"what was archived reads back differently: {problems[0]}")
                await transfer.remove_replaced(entries, there)
                files = merge_files(entries, there)
                manifest = make_manifest(
                    self._identity,
                    files,
                    checkpoint_step=drafter_step(picture, there),
                    supersedes=there.superseded,
                )
                await transfer.finish(manifest)
        self.state.archived = {file.path: file for file in files}
        for conflict in tally.conflicts:
            logger.warning("at %s: %s", destination, conflict)
        if any(entry.part == "drafter" for entry in entries):
            # Unlike an export the archive goes on, and says so until a drafter arrives whole.
            self._drafter_problem = tally.problems[0] if tally.problems else None
        self._count_backlog(found[len(batch) :])
        return True

    def _look(self, refresh: bool) -> list[RunFile]:
        """Files that the destination does not have yet, and with `refresh` those that change."""
        found = collect(self._folder, PART_ORDER, "all")
        groups = {file.group for file in found.files}
        self._damaged = {key: text for key, text in self._damaged.items() if key in groups}
        settled = [file for file in found.files if file.settled]
        changing = [file for file in found.files if not file.settled] if refresh else []
        wanted = [*changing, *(file for file in settled if self._is_due(file))]
        order = {part: index for index, part in enumerate(PART_ORDER)}
        wanted.sort(key=lambda file: (order[file.part], file.key))
        self._count_backlog([file for file in wanted if file.settled])
        return wanted

    def _is_due(self, file: RunFile) -> bool:
        if file.group in self._damaged:
            return False
        there = self.state.archived.get(file.key)
        return there is None or there.sha256 != self._sum(file)

    def _sum(self, file: RunFile) -> str | None:
        """SHA-256 of a settled file, recorded or from memory where it has not changed.

        None once it is gone.
        """
        try:
            status = file.path.stat()
            stamp = _Stamp(status.st_size, status.st_mtime_ns)
            known = self._sums.get(file.key)
            if file.recorded is not None:
                known = self._sums[file.key] = (stamp, file.recorded.sha256)
            if known is None or known[0] != stamp:
                known = (stamp, sha256_file(file.path)[1])
                self._sums[file.key] = known
        except FileNotFoundError:
            return None
        return known[1]

    def _stage(self, staging: Staging, batch: list[RunFile]) -> Picture:
        """A picture of the batch; files that went away are left to the next pass."""
        keys = {file.key for file in batch}
        parts = tuple(part for part in PART_ORDER if any(file.part == part for file in batch))
        return take_picture(
            self._folder, staging, parts, "all", wanted=lambda file: file.key in keys
        )

    def _count_backlog(self, files: list[RunFile]) -> None:
        sizes = [self._sums[file.key][0].num_bytes for file in files if file.key in self._sums]
        self.state.backlog_files, self.state.backlog_bytes = len(files), sum(sizes)

    def _write_documents(self) -> None:
        archive = None
        if self._destination is not None:
            state = self.state
            archive = ArchiveFacts(
                self._destination,
                len(state.archived),
                state.num_bytes,
                state.backlog_files,
                state.backlog_bytes,
                state.problem,
            )
        write_progress(self._folder, self._identity.run_id, self._identity.run_name, archive)
        self._write_manifest()

    def _write_manifest(self) -> None:
        """The run folder's own manifest: its settled files, wherever else they are."""
        self._seed_sums()
        found = collect(self._folder, PART_ORDER, "all")
        entries = frozenset(
            entry for file in found.files if file.settled and (entry := self._local_entry(file))
        )
        if entries == self._written_manifest:
            return
        manifest = make_manifest(
            self._identity, list(entries), checkpoint_step=found.checkpoint_step
        )
        write_file(self._folder.manifest_json, manifest.to_bytes())
        self._written_manifest = entries

    def _local_entry(self, file: RunFile) -> ManifestFile | None:
        if file.part == "drafter":
            return None  # the same bytes are listed with their checkpoint
        sha256 = self._sum(file)
        if sha256 is None:
            return None
        return ManifestFile(
            path=file.key,
            num_bytes=self._sums[file.key][0].num_bytes,
            sha256=sha256,
            part=file.part,
        )

    def _seed_sums(self) -> None:
        """After a restart, believe the sums of files that are older than the manifest."""
        if self._written_manifest is not None or not self._folder.manifest_json.exists():
            return
        try:
            manifest = parse_manifest(
                self._folder.manifest_json.read_bytes(), source=str(self._folder.manifest_json)
            )
        except IntegrityError as error:
            logger.warning("%s; the files are summed again", error)
            return
        for file in manifest.files:
            path = self._folder.root / file.path
            if path.is_file() and file.path not in self._sums:
                status = path.stat()
                if status.st_size == file.num_bytes and status.st_mtime < manifest.created_at - 2:
                    stamp = _Stamp(status.st_size, status.st_mtime_ns)
                    self._sums[file.path] = (stamp, file.sha256)


async def archive_until(
    archive: ContinuousArchive,
    ended: asyncio.Event,
    wake: asyncio.Event,
    after_pass: Callable[[ArchiveState], None],
) -> None:
    """Passes until `ended`, then a last one with everything; `wake` brings the next one forward."""
    while not ended.is_set():
        wake.clear()  # before the pass, so that what is announced during it counts
        await archive.run_pass()
        after_pass(archive.state)
        await _first_of(ended, wake, SCAN_S)
    await archive.run_pass(everything=True)
    after_pass(archive.state)


async def _first_of(ended: asyncio.Event, wake: asyncio.Event, limit_s: float) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in (ended, wake)]
    try:
        await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _first_bytes(files: list[RunFile], limit: int) -> list[RunFile]:
    """The first files, up to about `limit` bytes, at least one, a checkpoint never cut in two."""
    taken: list[RunFile] = []
    size = 0
    for file in files:
        is_new_group = not taken or taken[-1].group != file.group
        if taken and size >= limit and is_new_group:
            break
        taken.append(file)
        size += file.path.stat().st_size if file.path.exists() else 0
    return taken
