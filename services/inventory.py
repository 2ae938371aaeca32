"""Inventory of a store: objects and bytes by prefix, compared instead of believed.

    listing + manifests found in it + run folders here + ledger -> a state for every object

A manifest speaks for everything below the folder it lies in; where manifests nest, the nearest
one. `verified` means: read back and summed when the manifest was written, and still of that size.
An export's `verify` reads everything again; an inventory lists, so it is cheap at any size.

Stale is what is of no use any more: files of a run that a person or a gate declared bad, what an
unfinished export left, copies beside a conflict, and copies of files that have changed since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.files import is_temporary
from services.object_stores import ObjectStore
from shared.api.inventory import (
    InventoryFinding,
    InventoryRow,
    InventoryRun,
    InventoryView,
    ObjectState,
)
from shared.errors import IntegrityError, NotFoundError
from shared.layout import RunFolder
from shared.manifest import (
    JOURNAL_NAME,
    MANIFEST_NAME,
    Manifest,
    ManifestFile,
    parse_journal,
    parse_manifest,
)

MAX_FINDINGS = 200
_BESIDE = ".dflash-mesh-"


@dataclass(frozen=True)
class RunKnowledge:
    """What this side knows of a run.

    `folder`: its run folder, if it is here. `ledger`: path -> SHA-256 of files whose content the
    database has recorded. `bad_because`: why its files are of no use, if they are not.
    """

    folder: RunFolder | None = None
    ledger: Mapping[str, str] = field(default_factory=dict)
    bad_because: str | None = None


@dataclass
class _Scope:
    """A folder of the store that one run has a manifest or a journal in."""

    prefix: str
    manifest: Manifest | None = None
    run_id: str | None = None
    reason: str = ""


async def take_inventory(
    store: ObjectStore, *, depth: int = 1, runs: Mapping[str, RunKnowledge] | None = None
) -> InventoryView:
    """List the open `store` and compare.

    depth: how many folder levels a row's prefix has; 0 gives one row for everything. Raises what
    the store raises (NotFoundError for a bucket that does not exist, outages, refusals).
    """
    if depth < 0:
        raise ValueError("depth must not be negative")
    sizes = {info.key: info.num_bytes async for info in store.objects()}
    scopes = await _find_scopes(store, sizes)
    knowledge = runs or {}
    findings = _judge(sizes, scopes, knowledge)
    rows = _rows(sizes, findings, depth)
    listed = [f for f in findings.values() if f.state != "verified"]
    listed.sort(key=lambda f: (_SEVERITY.index(f.state), f.key))
    found_runs = await asyncio.to_thread(_runs, scopes, knowledge)
    return InventoryView(
        url=store.url,
        depth=depth,
        items=rows,
        runs=found_runs,
        findings=listed[:MAX_FINDINGS],
        findings_left_out=max(0, len(listed) - MAX_FINDINGS),
    )


_SEVERITY: tuple[ObjectState, ...] = ("missing", "mismatched", "stale", "extra", "verified")


async def _find_scopes(store: ObjectStore, sizes: Mapping[str, int]) -> dict[str, _Scope]:
    scopes: dict[str, _Scope] = {}
    for key in sizes:
        prefix, _, name = key.rpartition("/")
        if name not in (MANIFEST_NAME, JOURNAL_NAME):
            continue
        scope = scopes.setdefault(prefix, _Scope(prefix))
        source = f"{key} at {store.url}"
        try:
            data = await store.read_bytes(key)
            if name == MANIFEST_NAME:
                scope.manifest = parse_manifest(data, source=source)
                scope.run_id = scope.manifest.run_id
            else:
                journal = parse_journal(data, source=source)
                scope.run_id = scope.run_id or journal.run_id
        except (IntegrityError, NotFoundError) as error:
            scope.reason = str(error)
    return scopes


def _judge(
    sizes: Mapping[str, int], scopes: Mapping[str, _Scope], runs: Mapping[str, RunKnowledge]
) -> dict[str, InventoryFinding]:
    """A finding for every object, and for every file that should be there and is not."""
    findings: dict[str, InventoryFinding] = {}
    listed: dict[str, tuple[_Scope, ManifestFile]] = {}
    for scope in scopes.values():
        for file in scope.manifest.files if scope.manifest else ():
            key = _join(scope.prefix, file.key)
            if _nearest(key, scopes) is scope:
                listed[key] = (scope, file)
    for key, num_bytes in sizes.items():
        owner = listed.get(key)
        if owner is not None:
            scope, file = owner
            state, reason = _judge_listed(scope, file, num_bytes, runs)
        else:
            near = _nearest(key, scopes)
            state, reason = _judge_unlisted(key, near, runs)
            scope = near or _Scope("")
        findings[key] = InventoryFinding(
            key=key, state=state, num_bytes=num_bytes, run_id=scope.run_id, reason=reason
        )
    for key, (scope, file) in listed.items():
        if key not in sizes:
            findings[key] = _missing(key, scope, file.num_bytes, "the manifest lists it")
    for scope in scopes.values():
        known = runs.get(scope.run_id or "", RunKnowledge())
        paths = {file.path for file in scope.manifest.files} if scope.manifest else set()
        for path in known.ledger if scope.manifest else ():
            key = _join(scope.prefix, path)
            if path not in paths and key not in sizes:
                findings[key] = _missing(key, scope, 0, "the ledger has it, the manifest does not")
    return findings


def _judge_listed(
    scope: _Scope, file: ManifestFile, num_bytes: int, runs: Mapping[str, RunKnowledge]
) -> tuple[ObjectState, str]:
    known = runs.get(scope.run_id or "", RunKnowledge())
    if num_bytes != file.num_bytes:
        return "mismatched", f"{num_bytes} bytes; its manifest says {file.num_bytes}"
    recorded = known.ledger.get(file.path)
    if recorded is not None and recorded != file.sha256:
        return "mismatched", "the ledger has recorded other content for it"
    if known.bad_because is not None:
        return "stale", known.bad_because
    if file.stored_as is not None:
        return "verified", f"stored beside {file.path}, which was there first"
    return "verified", "listed in its manifest, same size"


def _judge_unlisted(
    key: str, near: _Scope | None, runs: Mapping[str, RunKnowledge]
) -> tuple[ObjectState, str]:
    name = key.rpartition("/")[2]
    if near is None:
        return "extra", "no manifest speaks for it"
    known = runs.get(near.run_id or "", RunKnowledge())
    if name == MANIFEST_NAME and near.prefix == key.rpartition("/")[0]:
        if near.manifest is None:
            return "mismatched", near.reason
        return ("stale", known.bad_because) if known.bad_because else ("verified", "the manifest")
    if known.bad_because is not None:
        return "stale", known.bad_because
    if near.manifest is None:
        return "stale", near.reason or "an export that was not finished left it; export again"
    if name == JOURNAL_NAME or _BESIDE in name:
        return "stale", "an earlier export left it"
    return "extra", "its manifest does not list it"


def _missing(key: str, scope: _Scope, num_bytes: int, reason: str) -> InventoryFinding:
    return InventoryFinding(
        key=key, state="missing", num_bytes=num_bytes, run_id=scope.run_id, reason=reason
    )


def _rows(
    sizes: Mapping[str, int], findings: Mapping[str, InventoryFinding], depth: int
) -> list[InventoryRow]:
    rows: dict[str, InventoryRow] = {}
    for key, finding in findings.items():
        prefix = "/".join(key.split("/")[:-1][:depth])
        row = rows.setdefault(prefix, InventoryRow(prefix=prefix))
        if key in sizes:
            row.objects += 1
            row.bytes += sizes[key]
        setattr(row, finding.state, getattr(row, finding.state) + 1)
        if finding.state == "stale":
            row.stale_bytes += finding.num_bytes
    return [rows[prefix] for prefix in sorted(rows)]


def _runs(scopes: Mapping[str, _Scope], runs: Mapping[str, RunKnowledge]) -> list[InventoryRun]:
    found = []
    for prefix, scope in sorted(scopes.items()):
        manifest = scope.manifest
        if manifest is None:
            continue
        known = runs.get(manifest.run_id, RunKnowledge())
        local = _local_files(known.folder) if known.folder else {}
        here = {file.path for file in manifest.files}
        only = {path: size for path, size in local.items() if path not in here}
        found.append(
            InventoryRun(
                run_id=manifest.run_id,
                run_name=manifest.run_name,
                prefix=prefix,
                created_at=manifest.created_at,
                checkpoint_step=manifest.checkpoint_step,
                files=len(manifest.files),
                bytes=manifest.total_bytes,
                local_only_files=len(only),
                local_only_bytes=sum(only.values()),
            )
        )
    return found


def _local_files(folder: RunFolder) -> dict[str, int]:
    """Visible regular files of a run folder with their sizes, links not followed."""
    files: dict[str, int] = {}
    pending: list[Path] = [folder.root] if folder.root.is_dir() else []
    while pending:
        for path in pending.pop().iterdir():
            if path.name.startswith(".") or is_temporary(path.name) or path.is_symlink():
                continue
            if path.is_dir():
                pending.append(path)
            elif path.is_file() and path.name not in (MANIFEST_NAME, JOURNAL_NAME):
                files[path.relative_to(folder.root).as_posix()] = path.stat().st_size
    return files


def _nearest(key: str, scopes: Mapping[str, _Scope]) -> _Scope | None:
    """The scope of the deepest folder above `key` that has one."""
    folder = key.rpartition("/")[0]
    while True:
        if folder in scopes:
            return scopes[folder]
        if not folder:
            return None
        folder = folder.rpartition("/")[0]


def _join(prefix: str, path: str) -> str:
    return f"{prefix}/{path}" if prefix else path
