"""The real app with its real database, and a launcher that starts nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from control_plane.app import create_app
from control_plane.http.state import MeshState
from control_plane.settings import Settings
from tests.helpers.idle_launcher import IdleLauncher


class Plane:
    """A running control plane and a client of it."""

    def __init__(self, app: FastAPI, client: httpx.AsyncClient, launcher: IdleLauncher) -> None:
        self.app = app
        self.client = client
        self.launcher = launcher

    @property
    def mesh(self) -> MeshState:
        mesh: MeshState = self.app.state.mesh
        return mesh

    async def start_run(self, **overrides: Any) -> dict[str, Any]:
        given = {"data.num_prompts": 12, "supervision.drain_deadline_s": 0.1, **overrides}
        body = {"preset": "demo", "overrides": given}
        response = await self.client.post("/v1/runs", json=body)
        assert response.status_code == 202, response.text
        run: dict[str, Any] = response.json()
        return run


PlaneFactory = Callable[..., AbstractAsyncContextManager[Plane]]


@pytest.fixture
def make_plane(tmp_path: Path) -> PlaneFactory:
    @asynccontextmanager
    async def make(**settings: Any) -> AsyncIterator[Plane]:
        given: dict[str, Any] = {
            "data": tmp_path / "data",
            "export_roots": [tmp_path / "exports"],
            "max_active_runs": 0,
            **settings,
        }
        launcher = IdleLauncher()
        app = create_app(Settings(**given), launcher)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client,
        ):
            yield Plane(app, client, launcher)

    return make


@pytest.fixture
async def plane(make_plane: PlaneFactory) -> AsyncIterator[Plane]:
    """Runs stay queued: nothing is launched."""
    async with make_plane() as made:
        yield made
