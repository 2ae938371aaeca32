"""`POST /v1/plan`: what a run will need, before anything runs."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from control_plane import submission
from control_plane.http.state import Mesh
from shared.api.plan import PlanRequest, PlanView

router = APIRouter(prefix="/v1/plan", tags=["runs"])


@router.post("", summary="Forecast: storage, bandwidth, memory, time, cost")
async def make_plan(request: PlanRequest, mesh: Mesh) -> PlanView:
    forecasts = await asyncio.to_thread(submission.plan, request, mesh.settings.data)
    return PlanView(forecasts=forecasts)
