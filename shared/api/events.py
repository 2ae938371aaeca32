"""Facts that workers report with their heartbeats.

A worker keeps an event until a heartbeat that carried it is answered, so each arrives at least
once; the control plane stores each by its natural key (segment index, step, ...), so a second
arrival changes nothing. `number` counts the events of one incarnation.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    number: int = Field(ge=0)


class SegmentSealed(_Event):
    """The batcher sealed a shard; its content never changes from here on."""

    type: Literal["segment_sealed"] = "segment_sealed"
    index: int = Field(ge=0)
    num_samples: int = Field(ge=0)
    num_tokens: int = Field(ge=0)
    num_supervised_tokens: int = Field(ge=0)
    sha256: str
    path: str


class CheckpointSaved(_Event):
    """The trainer wrote a complete checkpoint."""

    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: int = Field(ge=0)
    next_micro_batch_id: int = Field(ge=0)
    epoch: int = Field(ge=0)
    loss: float | None = None
    num_bytes: int = Field(ge=0)
    path: str


class CheckpointRemoved(_Event):
    """The trainer removed an old checkpoint (`trainer.keep_checkpoints`)."""

    type: Literal["checkpoint_removed"] = "checkpoint_removed"
    step: int = Field(ge=0)


class StepTaken(_Event):
    """One optimizer step; becomes a row of the run's series."""

    type: Literal["step_taken"] = "step_taken"
    step: int = Field(ge=1)
    epoch: int = Field(ge=0)
    loss: float | None = None
    accuracy: float | None = None
    lr: float
    grad_norm: float | None = None
    num_tokens: int = Field(ge=0)
    simulated_acceptance_length: float | None = None


class GateReport(_Event):
    """The batcher's data-quality report so far; `blocked` when a limit was passed."""

    type: Literal["gate_report"] = "gate_report"
    blocked: bool
    reason: str | None = None
    report: dict[str, Any]


class EvaluationDone(_Event):
    """The evaluator's result."""

    type: Literal["evaluation_done"] = "evaluation_done"
    evaluation_id: str
    result: dict[str, Any]


class ExportProgress(_Event):
    """The archiver's progress on one export; the last one carries the final state."""

    type: Literal["export_progress"] = "export_progress"
    export_id: str
    state: Literal["running", "verifying", "completed", "failed", "cancelled", "superseded"]
    files_total: int = Field(ge=0)
    files_done: int = Field(ge=0)
    bytes_total: int = Field(ge=0)
    bytes_done: int = Field(ge=0)
    manifest_sha256: str | None = None
    conflicts: list[str] = []
    problems: list[str] = []


class LogLine(_Event):
    """A line worth the run's log tail: warnings and above, and the milestones of a role."""

    type: Literal["log_line"] = "log_line"
    level: Literal["debug", "info", "warning", "error"]
    message: str = Field(max_length=4000)
    created_at: float


class WorkerFailed(_Event):
    """Why a worker is about to exit with an error; `retryable` false fails the run at once."""

    type: Literal["worker_failed"] = "worker_failed"
    slug: str
    message: str
    retryable: bool


WorkerEvent = Annotated[
    SegmentSealed
    | CheckpointSaved
    | CheckpointRemoved
    | StepTaken
    | GateReport
    | EvaluationDone
    | ExportProgress
    | LogLine
    | WorkerFailed,
    Field(discriminator="type"),
]
