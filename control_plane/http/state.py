"""What the routes work with, made by the app's lifespan and handed to each call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from control_plane.broadcast import Broadcaster
from control_plane.controller import Controller
from control_plane.settings import Settings
from control_plane.store import Database


@dataclass
class MeshState:
    """`shut_down` comes before the server stops to answer, so that draining workers still reach
    it; the app's lifespan makes sure that it came at all."""

    settings: Settings
    database: Database
    broadcaster: Broadcaster
    controller: Controller
    is_shut_down: bool = False

    async def shut_down(self) -> None:
        """Drain the runs, then end the event streams; once."""
        if not self.is_shut_down:
            self.is_shut_down = True
            await self.controller.shutdown()
            self.broadcaster.close()


def mesh_state(request: Request) -> MeshState:
    state: MeshState = request.app.state.mesh
    return state


Mesh = Annotated[MeshState, Depends(mesh_state)]
