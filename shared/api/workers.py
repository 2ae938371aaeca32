"""The registry protocol between workers and control plane.

    POST   /v1/workers                  WorkerRegistration -> WorkerLease (201)
    PUT    /v1/workers/{id}/heartbeat   Heartbeat          -> HeartbeatAnswer (200)
    DELETE /v1/workers/{id}?reason=     the worker has drained and leaves (204)

A worker id names one incarnation. The newest incarnation of (run, role, rank) holds the lease; an
older one gets 409 `superseded-worker` and must exit. After a control-plane restart the same id
and incarnation heartbeat on: registration again with the same incarnation returns the same id.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from shared.api.events import WorkerEvent
from shared.states import DesiredState, Role, WorkerState


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LinkKeys(_Model):
    """CURVE keys of a run's links, z85 text; handed out at registration only, never stored in
    events or logs. Listeners use the server pair, dialers the client pair."""

    server_public: str
    server_secret: str
    client_public: str
    client_secret: str


class WorkerRegistration(_Model):
    run_id: str
    role: Role
    rank: int = Field(ge=0)
    incarnation: str = Field(min_length=8, max_length=64)
    host: str
    pid: int
    pid_birth: str = Field(
        max_length=200, description="Tells the process from another that has its number later"
    )
    device: str = "cpu"
    job_id: str | None = Field(None, description="Export or evaluation id of a job worker")


class Peer(_Model):
    """Another worker of the run, with the endpoints its links listen on."""

    worker_id: str
    role: Role
    rank: int
    incarnation: str
    host: str
    endpoints: dict[str, str] = Field(description="Link name -> 'tcp://host:port'")


class WorkerLease(_Model):
    worker_id: str
    config: dict[str, Any] = Field(description="The run's resolved configuration")
    run_folder: str
    job: dict[str, Any] | None = Field(None, description="Export or evaluation to carry out")
    desired: DesiredState
    peers: list[Peer]
    link_keys: LinkKeys | None


class QueueReport(_Model):
    """Depth of one link or buffer, as its owner sees it."""

    name: str = Field(description="'completions', 'batches', 'hidden_states', ...")
    depth: int = Field(ge=0)
    capacity: int = Field(ge=0)
    bytes: int = Field(ge=0)
    capacity_bytes: int = Field(ge=0)


class Heartbeat(_Model):
    incarnation: str
    seq: int = Field(ge=0)
    state: WorkerState
    endpoints: dict[str, str] = {}
    progress: dict[str, int] = Field(
        {},
        description=(
            "Keys of the run's progress this role owns: generator completions_done, "
            "completions_failed, completions_total; batcher samples_accepted, "
            "samples_quarantined; drafter_trainer step, steps_total, epoch, next_micro_batch_id"
        ),
    )
    metrics: dict[str, float] = Field(
        {},
        description=(
            "Gauges and counters: tokens_total (monotonic per incarnation), tokens_per_s, "
            "busy_share, wait_input_share, wait_output_share (of the last minute), loss, "
            "accuracy, gpu_utilisation, gpu_memory_bytes, rss_bytes"
        ),
    )
    queues: list[QueueReport] = []
    waits_for: str | None = Field(None, description="Role this worker waits for most, if any")
    last_error: str | None = None
    events: list[WorkerEvent] = []


class HeartbeatAnswer(_Model):
    desired: DesiredState
    peers: list[Peer]
    acked_events: int = Field(description="Events with a smaller number are stored")
    overrides: list[str] = Field([], description="Gates a person has overridden")
