"""The manifest: what a run's files are, as a verified list of sizes and SHA-256 sums.

It is written last, after everything that it lists has been read back, so its presence means that
an export (or a pass of the archiver) is whole. A manifest found at a store is input from outside:
paths are checked, unknown formats refused. Totals are computed, never stored twice.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from shared.api.exports import PART_ORDER, ExportPart
from shared.errors import IntegrityError

MANIFEST_NAME = "manifest.json"
# What an unfinished export has written or is about to; gone once the manifest is there.
JOURNAL_NAME = "manifest.partial.json"
FORMAT: Literal["dflash-mesh-manifest-1"] = "dflash-mesh-manifest-1"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _plain_path(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == ".":
        raise ValueError(f"{path[:80]!r} is not a plain relative path")
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise ValueError(f"{path[:80]!r} holds a control character")
    return path


class ManifestFile(_Model):
    """One file. `stored_as` differs from `path` where another file was there first."""

    path: str
    num_bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    part: ExportPart
    stored_as: str | None = None

    @field_validator("path", "stored_as")
    @classmethod
    def _plain(cls, value: str | None) -> str | None:
        return None if value is None else _plain_path(value)

    @property
    def key(self) -> str:
        """Where it lies at the store."""
        return self.stored_as or self.path


class Superseded(_Model):
    """The manifest that lay at the place before: of an export, or of the continuous archive."""

    manifest_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    export_id: str | None = None
    created_at: float = Field(description="Seconds since epoch")


class Manifest(_Model):
    """Files of one run at one place."""

    format: Literal["dflash-mesh-manifest-1"] = FORMAT
    run_id: str
    run_name: str
    config_sha256: str
    program_version: str
    created_at: float = Field(description="Seconds since epoch")
    export_id: str | None = None
    checkpoint_step: int | None = Field(None, description="Step of the drafter in drafter/")
    supersedes: Superseded | None = None
    files: list[ManifestFile]

    @field_validator("files")
    @classmethod
    def _ordered(cls, files: list[ManifestFile]) -> list[ManifestFile]:
        keys = [file.key for file in files]
        if len(set(keys)) != len(keys):
            raise ValueError("a path is listed twice")
        return sorted(files, key=lambda file: (PART_ORDER.index(file.part), file.path))

    @property
    def total_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    def to_bytes(self) -> bytes:
        """Indented JSON, the same for the same content."""
        tree = self.model_dump(mode="json", exclude_none=True)
        return (json.dumps(tree, indent=1, ensure_ascii=False) + "\n").encode()


class Journal(_Model):
    """(path, sha256) of everything this run has put at a place: what it may replace there."""

    run_id: str
    written: set[tuple[str, str]]

    def to_bytes(self) -> bytes:
        """JSON, sorted."""
        tree = {"run_id": self.run_id, "written": sorted(self.written)}
        return (json.dumps(tree, ensure_ascii=False) + "\n").encode()


def parse_manifest(data: bytes, *, source: str) -> Manifest:
    """The manifest in `data`; IntegrityError says what is wrong with the one at `source`."""
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise IntegrityError(f"{source} is not a usable manifest: {_first(error)}") from error


def parse_journal(data: bytes, *, source: str) -> Journal:
    """The journal in `data`; IntegrityError as for a manifest."""
    try:
        return Journal.model_validate_json(data)
    except ValidationError as error:
        raise IntegrityError(f"{source} is not a usable journal: {_first(error)}") from error


def _first(error: ValidationError) -> str:
    item = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in item["loc"])
    return f"{place}: {item['msg']}" if place else item["msg"]
