"""Exports: requests, progress and results."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

ExportState = Literal["queued", "running", "verifying", "completed", "failed", "cancelled"]
ExportPart = Literal[
    "metadata", "logs", "drafter", "checkpoints", "dataset", "completions", "quarantine"
]
DEFAULT_PARTS: tuple[ExportPart, ...] = ("metadata", "logs", "drafter", "checkpoints", "dataset")
# The order in which files leave: small and irreplaceable first.
PART_ORDER: tuple[ExportPart, ...] = (
    "metadata",
    "logs",
    "drafter",
    "quarantine",
    "dataset",
    "completions",
    "checkpoints",
)


class ExportRequest(BaseModel):
    """An empty body means the run's own store and the newest complete checkpoint."""

    model_config = ConfigDict(extra="forbid")

    destination: str | None = Field(None, description="file:///folder or s3://bucket/prefix")
    checkpoints: Literal["latest", "all"] | list[Annotated[int, Field(ge=0)]] = "latest"
    include: list[ExportPart] | None = None


class ExportView(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    run_id: str
    state: ExportState
    destination: str
    files_total: int
    files_done: int
    bytes_total: int
    bytes_done: int
    manifest_sha256: str | None
    conflicts: list[str]
    problems: list[str]
    created_at: float
    ended_at: float | None
