"""`POST /v1/plan`: the forecast of a run before anything runs, for one or several accelerators."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from shared.api.runs import RunRequest
from shared.forecast.estimate import Forecast


class PlanRequest(RunRequest):
    """A run as in `POST /v1/runs`, and what to count with."""

    gpus: list[str] = Field([], max_length=20, description="Names in the table; empty: sizes only")
    num_prompts: int | None = Field(None, gt=0, description="None: the prompts file is counted")
    tokens_per_sample: float | None = Field(None, gt=0)
    usd_per_hour: dict[str, float] = Field({}, description="Prices by accelerator name")
    target_config: dict[str, Any] | None = Field(
        None, description="The target's config.json, when its folder is not on this machine"
    )


class PlanView(BaseModel):
    """One forecast for each accelerator asked for, or a single one of sizes only."""

    model_config = ConfigDict(extra="forbid")

    forecasts: list[Forecast]
