"""The FastAPI app: layers, routes, and what lives as long as it does.

    lifespan: lock the data folder -> open the database -> controller.start
              -> requests -> controller.shutdown -> close

The lock comes first, so two control planes never migrate or write one database.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from fastapi import FastAPI

from control_plane.broadcast import Broadcaster
from control_plane.controller import Controller
from control_plane.housekeeping import keep_house
from control_plane.http.access import AccessMiddleware
from control_plane.http.body import BodyMiddleware
from control_plane.http.documentation import install_openapi
from control_plane.http.envelope import EnvelopeMiddleware
from control_plane.http.idempotency import IdempotencyMiddleware
from control_plane.http.problems import install_handlers
from control_plane.http.state import MeshState
from control_plane.lock import FolderLock
from control_plane.routes import (
    documents,
    events,
    exports,
    plan,
    run_details,
    runs,
    session,
    storage,
    system,
    workers,
)
from control_plane.settings import Settings
from control_plane.static_pages import install_page
from control_plane.store import Database, idempotency
from control_plane.version import program_version
from services.launchers import Launcher


def create_app(settings: Settings, launcher: Launcher) -> FastAPI:
    """The whole control plane as an ASGI app; UserError when `settings` would leave it open.

    While its lifespan runs, `app.state.mesh` holds what the routes work with.
    """
    app = FastAPI(
        lifespan=_lifespan(settings.checked(), launcher),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    modules = (
        system,
        documents,
        session,
        runs,
        run_details,
        events,
        exports,
        workers,
        storage,
        plan,
    )
    for module in modules:
        app.include_router(module.router)
    pages = install_page(app)
    install_handlers(app, [*(r for module in modules for r in module.router.routes), *pages])
    install_openapi(app, program_version())
    # The one added last is the outermost.
    app.add_middleware(IdempotencyMiddleware)
    app.add_middleware(BodyMiddleware)
    app.add_middleware(AccessMiddleware, settings=settings)
    app.add_middleware(EnvelopeMiddleware)
    return app


def _lifespan(
    settings: Settings, launcher: Launcher
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with FolderLock(settings.folder.lock):
            database = await Database.open(settings.folder.database)
            try:
                async with _running(app, settings, launcher, database):
                    yield
            finally:
                await database.close()

    return lifespan


@asynccontextmanager
async def _running(
    app: FastAPI, settings: Settings, launcher: Launcher, database: Database
) -> AsyncIterator[None]:
    broadcaster = Broadcaster()
    database.on_events = broadcaster.publish_stored
    controller = Controller(
        settings=settings, database=database, launcher=launcher, broadcaster=broadcaster
    )
    mesh = MeshState(settings, database, broadcaster, controller)
    app.state.mesh = mesh
    await database.write(idempotency.prune, now=time.time(), unfinished=True)
    await controller.start()
    pruning = asyncio.create_task(keep_house(database), name="housekeeping")
    try:
        yield
    finally:
        await mesh.shut_down()
        pruning.cancel()
        with suppress(asyncio.CancelledError):
            await pruning
