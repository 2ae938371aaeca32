"""Runs, checkpoints and evaluations as the API shows them."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from shared.api.workers import QueueReport
from shared.states import Role, RunAction, RunState, Stage, WorkerState

T = TypeVar("T")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Page(_Model, Generic[T]):
    """One page of a list; `next_cursor` is null on the last one."""

    items: list[T]
    next_cursor: str | None = None


class RunRequest(_Model):
    """`{"preset": "demo", "overrides": {"trainer.lr": 1e-3}}` or `{"config": {...}}`."""

    preset: str | None = None
    config: dict[str, Any] | None = None
    overrides: dict[str, Any] = {}


class StopRequest(_Model):
    mode: Literal["drain", "now"] = "drain"


class Progress(_Model):
    completions_done: int = 0
    completions_failed: int = 0
    completions_total: int = 0
    samples_accepted: int = 0
    samples_quarantined: int = 0
    step: int = 0
    steps_total: int = 0
    epoch: int = Field(0, description="Of the last step, counted from 0; people see it from 1")
    epochs_total: int = Field(0, description="train.num_epochs; 0 for a run that does not train")


class Throughput(_Model):
    generated_tokens_per_s: float = 0.0
    target_tokens_per_s: float = 0.0
    trained_tokens_per_s: float = 0.0


class RunView(_Model):
    id: str
    name: str
    state: RunState
    stage: Stage | None = Field(description="Null before the first and once the run has ended")
    reason: str | None
    created_at: float = Field(description="Seconds since epoch, as all times here")
    started_at: float | None
    ended_at: float | None
    config_sha256: str
    progress: Progress
    throughput: Throughput
    queues: list[QueueReport]
    loss: float | None
    accuracy: float | None
    acceptance_length: float | None
    bottleneck: str | None
    eta_s: float | None
    allowed_actions: list[RunAction]


class WorkerView(_Model):
    id: str
    run_id: str
    role: Role
    rank: int
    host: str
    pid: int
    device: str
    state: WorkerState
    heartbeat_age_s: float | None
    restarts: int
    last_error: str | None
    registered_at: float
    metrics: dict[str, float]
    waits_for: str | None


class CheckpointView(_Model):
    step: int
    epoch: int = Field(description="Of its last step, counted from 0, as in a run's progress")
    loss: float | None
    num_bytes: int
    path: str
    created_at: float
    acceptance_length: float | None


class EvaluationRequest(_Model):
    checkpoint: Literal["latest"] | int = "latest"
    num_prompts: int | None = Field(None, gt=0)


class EvaluationView(_Model):
    id: str
    run_id: str
    state: Literal["queued", "running", "completed", "failed"]
    checkpoint_step: int | None
    result: dict[str, Any] | None
    created_at: float
    ended_at: float | None
    problem: str | None
