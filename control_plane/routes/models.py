"""Answers that only the control plane's own routes give."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.forecast import Forecast


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DryRunView(_Model):
    """What a run would be: nothing was started."""

    config: dict[str, Any]
    config_sha256: str
    forecast: Forecast


class SeriesPoint(_Model):
    step: int = Field(description="Optimizer step, or seconds since the run was created")
    t: float
    value: float


class SeriesView(_Model):
    name: str
    points: list[SeriesPoint]


class MetricsView(_Model):
    names: list[str] = Field(description="Every series the run has")
    items: list[SeriesView]


class ReportView(_Model):
    """The data-quality report; null before the batcher has seen anything."""

    run_id: str
    overrides: list[str]
    report: dict[str, Any] | None


class LogEntry(_Model):
    role: str
    rank: int
    level: Literal["debug", "info", "warning", "error"] | None
    line: str


class LogsView(_Model):
    items: list[LogEntry]
    truncated: bool = Field(description="Whether the files hold more than was looked at")


class BackupView(_Model):
    name: str
    path: str
    num_bytes: int
    created_at: float


class SessionRequest(_Model):
    token: str = Field(max_length=4096)


class SessionView(_Model):
    required: bool = Field(description="Whether this control plane has a token")
    signed_in: bool


class HealthView(_Model):
    status: Literal["ok", "ready"]


class VersionView(_Model):
    name: Literal["dflash-mesh"] = "dflash-mesh"
    version: str
    api: Literal["v1"] = "v1"
