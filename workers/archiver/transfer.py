"""Bring staged files to a store: nothing overwritten, nothing sent twice, everything read back.

    listing + what the run itself put there -> for each file: there already | send | keep beside
    -> read back -> manifest last

A file at the destination that this run did not write stays as it is. When ours differs, ours goes
beside it as NAME.dflash-mesh-SHA8 and the conflict is reported; in the drafter's folder, which does
not load with a foreign file in it, as a problem. A foreign manifest is refused before anything is
sent. What the run wrote itself (it is in the manifest there, or in the journal of an export that
was cut short, with the content it has now) may be replaced by a newer state, and the new manifest
says which one it supersedes. The journal is written before the first file, the manifest after the
last one has been read back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.files import sha256_bytes
from services.object_stores import ObjectStore
from services.task_groups import run_together
from shared.errors import ConflictError, IntegrityError, NotFoundError
from shared.manifest import (
    JOURNAL_NAME,
    MANIFEST_NAME,
    Journal,
    Manifest,
    ManifestFile,
    Superseded,
    parse_journal,
    parse_manifest,
)
from workers.archiver.staging import StagedFile

logger = logging.getLogger(__name__)
FILES_AT_ONCE = 4
_MARK = ".dflash-mesh-"


@dataclass
class Tally:
    """Progress of a transfer, read by whoever reports it. Only grows.

    `conflicts` and `problems` are sentences for the person who asked.
    """

    files_total: int = 0
    files_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    files_sent: int = 0
    bytes_sent: int = 0
    conflicts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Destination:
    """What a store holds before the transfer, as far as it concerns this run."""

    sizes: dict[str, int]
    owned: frozenset[tuple[str, str]]  # (key, sha256) that this run put there
    manifest: Manifest | None
    manifest_sha256: str | None = None

    @property
    def superseded(self) -> Superseded | None:
        """What a new manifest at this place says of the one before."""
        if self.manifest is None or self.manifest_sha256 is None:
            return None
        return Superseded(
            manifest_sha256=self.manifest_sha256,
            export_id=self.manifest.export_id,
            created_at=self.manifest.created_at,
        )


async def look_at(store: ObjectStore, run_id: str) -> Destination:
    """List the store and read what earlier transfers of this run noted there.

    ConflictError when the place belongs to another run, or its manifest is none of ours.
    """
    sizes = {info.key: info.num_bytes async for info in store.objects()}
    owned: set[tuple[str, str]] = set()
    manifest: Manifest | None = None
    manifest_sha256: str | None = None
    if MANIFEST_NAME in sizes:
        data = await store.read_bytes(MANIFEST_NAME)
        manifest, manifest_sha256 = _own_manifest(data, store), sha256_bytes(data)
        _same_run(manifest.run_id, run_id, store)
        owned |= {(file.key, file.sha256) for file in manifest.files}
    if JOURNAL_NAME in sizes:
        source = f"{JOURNAL_NAME} at {store.url}"
        try:
            journal = parse_journal(await store.read_bytes(JOURNAL_NAME), source=source)
        except (IntegrityError, NotFoundError) as error:
            logger.warning("%s", error)
        else:
            _same_run(journal.run_id, run_id, store)
            owned |= journal.written
    return Destination(sizes, frozenset(owned), manifest, manifest_sha256)


class Transfer:
    """One transfer of one run to one store."""

    def __init__(
        self, store: ObjectStore, run_id: str, tally: Tally, on_stored: Callable[[StagedFile], None]
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._tally = tally
        self._on_stored = on_stored
        self._unverified: list[ManifestFile] = []

    async def send(self, files: Sequence[StagedFile], there: Destination) -> list[ManifestFile]:
        """Make every file exist at the store; where each lies. Small and irreplaceable first."""
        if not files:
            return []
        planned = {(file.key, file.sha256) for file in files}
        planned |= {(_beside(file), file.sha256) for file in files}
        journal = Journal(run_id=self._run_id, written=set(there.owned) | planned)
        await self._store.put_bytes(JOURNAL_NAME, journal.to_bytes())
        placed: list[ManifestFile | None] = [None] * len(files)
        queue = iter(enumerate(files))

        async def work() -> None:
            for index, file in queue:
                placed[index] = await self._place(file, there)
                self._tally.files_done += 1
                self._on_stored(file)

        await run_together([work() for _ in range(FILES_AT_ONCE)])
        return [entry for entry in placed if entry is not None]

    async def verify(self) -> list[str]:
        """Read back everything that was sent; what does not match, in words."""
        problems = await check_files(self._store, self._unverified)
        self._unverified.clear()
        return problems

    async def remove_replaced(self, files: Sequence[ManifestFile], there: Destination) -> None:
        """Remove what this run put there and `files` take the place of, under another name.

        That is what an earlier drafter has and this one does not, since a folder with two steps'
        files in it loads wrongly, and copies beside a name that is ours again or has a newer one.
        """
        now, paths = {file.key for file in files}, {file.path for file in files}
        has_drafter = any(file.part == "drafter" for file in files)
        for key, sha256 in sorted(there.owned):
            if key in now or key not in there.sizes:
                continue
            name, mark, _ = key.rpartition(_MARK)
            is_copy = bool(mark) and name in paths
            if not is_copy and not (has_drafter and key.startswith("drafter/")):
                continue
            try:
                if (await self._store.digest(key))[1] == sha256:
                    await self._store.delete(key)
            except NotFoundError:
                continue

    async def finish(self, manifest: Manifest) -> None:
        """Put the manifest, read it back, remove the journal."""
        data = manifest.to_bytes()
        await self._store.put_bytes(MANIFEST_NAME, data)
        if await self._store.read_bytes(MANIFEST_NAME) != data:
            raise IntegrityError(
                f"{MANIFEST_NAME} at {self._store.url} reads back differently: export again"
            )
        await self._store.delete(JOURNAL_NAME)

    async def _place(self, file: StagedFile, there: Destination) -> ManifestFile:
        state = await self._state_at(file.key, file, there)
        if state == "equal":
            return self._entry(file, None, sent=False)
        if state != "foreign":
            try:
                await self._put(file, file.key, replace=state == "ours")
                return self._entry(file, None, sent=True)
            except ConflictError as error:
                logger.warning("%s", error)
        beside = _beside(file)
        conflict = conflict_text(file.key, beside)
        if file.part == "drafter":
            self._tally.problems.append(
                f"{conflict}. The drafter's folder does not load like that: remove the other file "
                "or choose an empty folder, and export again"
            )
        else:
            self._tally.conflicts.append(conflict)
        if await self._state_at(beside, file, there) == "equal":
            return self._entry(file, beside, sent=False)
        # The name carries our checksum: whatever else lies there is a damaged copy of ours.
        await self._put(file, beside, replace=True)
        return self._entry(file, beside, sent=True)

    async def _state_at(self, key: str, file: StagedFile, there: Destination) -> str:
        """'free', 'equal', 'ours' (written by this run, other content) or 'foreign'."""
        size = there.sizes.get(key)
        if size is None:
            return "free"
        try:
            _, sha256 = await self._store.digest(key)
        except NotFoundError:
            return "free"
        if size == file.num_bytes and sha256 == file.sha256:
            return "equal"
        return "ours" if (key, sha256) in there.owned else "foreign"

    async def _put(self, file: StagedFile, key: str, *, replace: bool) -> None:
        await self._store.put_file(
            file.path, key, sha256=file.sha256, replace=replace, on_bytes=self._count
        )

    def _count(self, num_bytes: int) -> None:
        self._tally.bytes_done += num_bytes
        self._tally.bytes_sent += num_bytes

    def _entry(self, file: StagedFile, stored_as: str | None, *, sent: bool) -> ManifestFile:
        entry = ManifestFile(
            path=file.key,
            num_bytes=file.num_bytes,
            sha256=file.sha256,
            part=file.part,
            stored_as=stored_as,
        )
        if sent:
            self._unverified.append(entry)
            self._tally.files_sent += 1
        else:
            self._tally.bytes_done += file.num_bytes
        return entry


async def check_files(
    store: ObjectStore,
    files: Sequence[ManifestFile],
    on_checked: Callable[[ManifestFile], None] | None = None,
) -> list[str]:
    """Read every file back and compare; a sentence for each that is missing or differs."""
    problems: list[str] = []
    queue = iter(files)

    async def work() -> None:
        for file in queue:
            try:
                num_bytes, sha256 = await store.digest(file.key)
            except NotFoundError:
                problems.append(f"{file.key}: missing at {store.url}")
            else:
                if num_bytes != file.num_bytes:
                    problems.append(f"{file.key}: {num_bytes} bytes instead of {file.num_bytes}")
                elif sha256 != file.sha256:
                    problems.append(f"{file.key}: other content than was sent (SHA-256 differs)")
            if on_checked is not None:
                on_checked(file)

    await run_together([work() for _ in range(FILES_AT_ONCE)])
    return sorted(problems)


def merge_files(new: Sequence[ManifestFile], there: Destination) -> list[ManifestFile]:
    """`new`, and what this run's manifest there already lists and `new` does not replace.

    A drafter folder is one thing: leftovers of another step's are not carried on.
    """
    earlier = there.manifest.files if there.manifest else []
    keys = {file.key for file in new} | {file.path for file in new}
    has_drafter = any(file.part == "drafter" for file in new)
    kept = [
        file
        for file in earlier
        if file.key not in keys
        and file.path not in keys
        and there.sizes.get(file.key) == file.num_bytes
        and not (has_drafter and file.part == "drafter")
    ]
    return [*new, *kept]


def conflict_text(path: str, beside: str) -> str:
    """What is said of a file of ours that lies beside one of somebody else's."""
    return f"{path}: another file was there; ours is {beside}"


def _beside(file: StagedFile) -> str:
    return f"{file.key}{_MARK}{file.sha256[:8]}"


def _own_manifest(data: bytes, store: ObjectStore) -> Manifest:
    try:
        return parse_manifest(data, source=f"{MANIFEST_NAME} at {store.url}")
    except IntegrityError as error:
        raise ConflictError(
            f"{error}. It is another program's or damaged, so nothing was sent: choose an empty "
            "folder, or remove that file, and export again"
        ) from error


def _same_run(found: str, run_id: str, store: ObjectStore) -> None:
    if found != run_id:
        raise ConflictError(
            f"{store.url} holds the export of run {found}: choose another destination for {run_id}"
        )
