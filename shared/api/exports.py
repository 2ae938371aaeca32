"""Exports: requests, progress and results."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

ExportState = Literal[
    "queued", "running", "verifying", "completed", "failed", "cancelled", "superseded"
]
ExportPart = Literal[
    "metadata", "logs", "drafter", "checkpoints", "dataset", "completions", "quarantine"
]
# Parts that are made from complete checkpoints.
CHECKPOINT_PARTS: frozenset[ExportPart] = frozenset({"drafter", "checkpoints"})
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
    """An empty body means the run's own store and the newest complete checkpoint.

    `include` None: DEFAULT_PARTS, for a run that does not train those without checkpoints.
    """

    model_config = ConfigDict(extra="forbid")

    destination: str | None = Field(None, description="file:///folder or s3://bucket/prefix")
    checkpoints: (
        Literal["latest", "all"] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    ) = Field("latest", description="Steps, when a list")
    include: Annotated[list[ExportPart], Field(min_length=1)] | None = Field(
        None, description="The parts wanted; without it all but completions and quarantine"
    )

    def parts(self, *, trains: bool) -> list[ExportPart]:
        """What is exported of a run that trains, or does not."""
        if self.include is not None:
            return list(dict.fromkeys(self.include))
        return [part for part in DEFAULT_PARTS if trains or part not in CHECKPOINT_PARTS]


class ExportView(BaseModel):
    """`superseded`: a check found the manifest of a later export at the destination.

    `conflicts`: files that lie beside one of somebody else's; `problems`: why it is not usable.
    """

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
