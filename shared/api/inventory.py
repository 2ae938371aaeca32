"""What lies at a place, by prefix, against the manifests there, the run folders and the ledger."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ObjectState = Literal["verified", "missing", "extra", "mismatched", "stale"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class InventoryRow(_Model):
    """Objects below one prefix. The states add up to `objects` plus `missing`."""

    prefix: str
    objects: int = 0
    bytes: int = 0
    verified: int = Field(0, description="Listed in a manifest, with the size it gives")
    missing: int = Field(0, description="Listed in a manifest or the ledger, and not there")
    extra: int = Field(0, description="There, in no manifest")
    mismatched: int = Field(0, description="Other size, or other content than the ledger says")
    stale: int = Field(0, description="Of no use any more; see the finding's reason")
    stale_bytes: int = 0


class InventoryFinding(_Model):
    """One object that is not simply verified."""

    key: str
    state: ObjectState
    num_bytes: int
    run_id: str | None
    reason: str


class InventoryRun(_Model):
    """One run that has a manifest at the place."""

    run_id: str
    run_name: str
    prefix: str
    created_at: float
    checkpoint_step: int | None
    files: int
    bytes: int
    local_only_files: int = Field(
        0, description="Files of the run folder here that the manifest does not list"
    )
    local_only_bytes: int = 0


class InventoryView(_Model):
    """The answer of GET /v1/inventory: a list by prefix, the runs found, and what is wrong."""

    url: str
    depth: int
    items: list[InventoryRow]
    runs: list[InventoryRun]
    findings: list[InventoryFinding]
    findings_left_out: int = 0
    next_cursor: str | None = None
