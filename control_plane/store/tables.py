"""Tables of the control plane's database.

    runs --< workers      registry: one row for each incarnation, newest of a slot holds the lease
         --< events       what the event stream replays, in order of id
         --< points       series, one row for each (name, step)
         --< segments     sealed shards: the ledger of what the batch plan is made of
         --< checkpoints  complete checkpoints, and when they were removed again
         --< exports      and evaluations: jobs with their request, progress and result
    idempotency_keys      first answers of POST calls

Invariants: `Run.state` changes only in `store.runs.transition`; `Run.version` grows with every
change of a run's row; times are seconds since the epoch; JSON columns are replaced whole, never
changed in place. Secrets have no column here.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Column, Float, ForeignKey, Index, Integer, LargeBinary, String
from sqlmodel import Field, SQLModel


def _run_key(*, primary: bool = False) -> Any:
    return Field(
        sa_column=Column(
            "run_id",
            String,
            ForeignKey("runs.id", ondelete="CASCADE"),
            nullable=False,
            primary_key=primary,
        )
    )


def _json(factory: Any) -> Any:
    return Field(default_factory=factory, sa_column=Column(JSON, nullable=False))


def _optional_json() -> Any:
    return Field(default=None, sa_column=Column(JSON(none_as_null=True), nullable=True))


class Run(SQLModel, table=True):
    """One run; progress, throughput and queues as the API shows them."""

    __tablename__ = "runs"
    __table_args__ = (Index("ix_runs_created", "created_at", "id"), Index("ix_runs_state", "state"))

    id: str = Field(primary_key=True)
    name: str
    state: str
    stage: str | None = None
    reason: str | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    updated_at: float
    version: int = 0
    config: dict[str, Any] = _json(dict)
    config_sha256: str
    progress: dict[str, Any] = _json(dict)
    throughput: dict[str, Any] = _json(dict)
    queues: list[dict[str, Any]] = _json(list)
    loss: float | None = None
    accuracy: float | None = None
    acceptance_length: float | None = None
    bottleneck: str | None = None
    eta_s: float | None = None
    overrides: list[str] = _json(list)
    gate_report: dict[str, Any] | None = _optional_json()
    stop_mode: str | None = None
    drain_started_at: float | None = None
    resume_on_start: bool = False
    deleting: bool = False


class Worker(SQLModel, table=True):
    """One incarnation of a worker, from its launch (or registration) to its end."""

    __tablename__ = "workers"
    __table_args__ = (
        Index("ix_workers_slot", "run_id", "role", "rank", "job_id"),
        Index("ix_workers_launched", "launched_at", "id"),
        Index("ux_workers_incarnation", "run_id", "role", "rank", "incarnation", unique=True),
    )

    id: str = Field(primary_key=True)
    run_id: str = _run_key()
    role: str
    rank: int
    incarnation: str
    job_id: str | None = None
    host: str = ""
    pid: int | None = None
    pid_birth: str | None = None
    device: str = "cpu"
    launched: bool = False  # started by our launcher; only such a process is ever signalled
    state: str
    desired: str
    launched_at: float
    registered_at: float | None = None
    heartbeat_at: float | None = None
    ended_at: float | None = None
    end_reason: str | None = None
    exit_code: int | None = None
    restarts: int = 0
    heartbeat_seq: int = -1
    acked_events: int = 0
    endpoints: dict[str, str] = _json(dict)
    progress: dict[str, int] = _json(dict)
    metrics: dict[str, float] = _json(dict)
    queues: list[dict[str, Any]] = _json(list)
    waits_for: str | None = None
    last_error: str | None = None


class Event(SQLModel, table=True):
    """A persisted event of a run's stream; `id` is the SSE id and grows by commit order."""

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_run", "run_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True)
    run_id: str = _run_key()
    name: str
    data: dict[str, Any] = _json(dict)
    created_at: float


class Point(SQLModel, table=True):
    """One value of a series. A replayed step replaces its row."""

    __tablename__ = "points"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run_id: str = _run_key(primary=True)
    name: str = Field(primary_key=True)
    step: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    t: float
    value: float = Field(sa_column=Column(Float, nullable=False))


class Segment(SQLModel, table=True):
    """A sealed shard; written once, never changed."""

    __tablename__ = "segments"

    run_id: str = _run_key(primary=True)
    index: int = Field(sa_column=Column("index", Integer, primary_key=True, autoincrement=False))
    num_samples: int
    num_tokens: int
    num_supervised_tokens: int
    sha256: str
    path: str
    created_at: float


class Checkpoint(SQLModel, table=True):
    """A complete checkpoint of the trainer."""

    __tablename__ = "checkpoints"

    run_id: str = _run_key(primary=True)
    step: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    next_micro_batch_id: int
    epoch: int
    loss: float | None = None
    num_bytes: int
    path: str
    created_at: float
    removed_at: float | None = None
    acceptance_length: float | None = None


class Export(SQLModel, table=True):
    """An export job: what was asked, how far it is, what came out."""

    __tablename__ = "exports"
    __table_args__ = (Index("ix_exports_run", "run_id", "created_at"),)

    id: str = Field(primary_key=True)
    run_id: str = _run_key()
    state: str
    destination: str
    checkpoints: Any = Field(sa_column=Column(JSON, nullable=False))
    include: list[str] = _json(list)
    verify_only: bool = False
    cancel_requested: bool = False
    files_total: int = 0
    files_done: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    manifest_sha256: str | None = None
    conflicts: list[str] = _json(list)
    problems: list[str] = _json(list)
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None


class Evaluation(SQLModel, table=True):
    """An evaluation job. `checkpoint_step` is None until 'latest' is resolved."""

    __tablename__ = "evaluations"
    __table_args__ = (Index("ix_evaluations_run", "run_id", "created_at"),)

    id: str = Field(primary_key=True)
    run_id: str = _run_key()
    state: str
    checkpoint_step: int | None = None
    num_prompts: int | None = None
    final: bool = False
    result: dict[str, Any] | None = _optional_json()
    problem: str | None = None
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None


class IdempotencyKey(SQLModel, table=True):
    """The first answer to a POST with this key; `status` is None while it is being made."""

    __tablename__ = "idempotency_keys"

    key: str = Field(primary_key=True)
    fingerprint: str
    status: int | None = None
    headers: dict[str, str] = _json(dict)
    body: bytes | None = Field(default=None, sa_column=Column(LargeBinary, nullable=True))
    created_at: float
