"""`serve`: the control plane in the foreground, from an open port to a clean end.

    first SIGTERM or SIGINT: drain the runs while workers are still answered, then stop answering
    second one: stop at once; workers then drain by themselves when their grace is over

The app's lifespan runs here and not in uvicorn, so that an error of the start (data folder in
use, a database that is not ours) reaches the caller as what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any

import uvicorn
from fastapi import FastAPI

from control_plane.app import create_app
from control_plane.http.connections import guarded_protocol, quiet_when_exhausted
from control_plane.lock import FolderLock
from control_plane.open_files import ENOUGH, open_files_limit, raise_limit
from control_plane.settings import Settings
from services.launchers import LocalLauncher
from shared.errors import EnvironmentFault

log = logging.getLogger(__name__)

# What open answers get when the server ends; event streams are ended before.
ANSWERS_END_S = 5
# For the head of a request, from the connection on or from the answer before it.
HEAD_S = 30.0
BACKLOG = 512
_FORMAT = "%(asctime)sZ %(levelname)s %(name)s: %(message)s"


def serve(settings: Settings) -> int:
    """Run until a signal; 0 after a clean end, 1 when a second signal cut it short.

    Raises what a person can correct: UserError (no token), ConflictError (data folder in use),
    EnvironmentFault (port, data folder), DatabaseFault.
    """
    _log_to_stderr(settings.log_level)
    settings = settings.checked()
    max_files = raise_limit()
    if max_files < ENOUGH:
        log.warning(
            "at most %d open files: many connections will be refused; raise it, ulimit -n %d",
            max_files,
            ENOUGH,
        )
    # Tried first, for a message that names the real obstacle; the app takes the lock itself.
    with FolderLock(settings.folder.lock):
        pass
    with listen(settings.host, settings.port) as sock:
        settings = replace(settings, port=sock.getsockname()[1])
        launcher = LocalLauncher(url=settings.url, token=settings.token)
        return asyncio.run(_run(create_app(settings, launcher), settings, sock))


class _Server(uvicorn.Server):
    """uvicorn without signal handling of its own: a signal must drain the runs first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _run(app: FastAPI, settings: Settings, sock: socket.socket) -> int:
    max_files = open_files_limit()
    asyncio.get_running_loop().set_exception_handler(quiet_when_exhausted())
    config = uvicorn.Config(
        app,
        http=guarded_protocol(head_s=HEAD_S, max_waiting=max(16, max_files // 4)),
        # Beyond this, callers hear 503 while there are files left to work with.
        limit_concurrency=max(32, max_files // 2),
        backlog=BACKLOG,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=ANSWERS_END_S,
    )
    server = _Server(config)
    asked, insisted = asyncio.Event(), asyncio.Event()
    with _signals(asked, insisted):
        async with app.router.lifespan_context(app):
            serving = asyncio.create_task(server.serve(sockets=[sock]), name="server")
            log.info("control plane at %s, data in %s", settings.url, settings.data)
            await _first(serving, asked.wait())
            if not serving.done():
                log.info("stopping: the runs drain; a second signal stops at once")
                await _first(asyncio.create_task(app.state.mesh.shut_down()), insisted.wait())
            server.should_exit = True
            server.force_exit = insisted.is_set()
            await serving
    log.info("stopped")
    return 1 if insisted.is_set() else 0


async def _first(task: asyncio.Task[None], signal_came: Coroutine[Any, Any, Any]) -> None:
    """Until the task is done or the signal has come; a task that has failed raises here."""
    waiting = asyncio.create_task(signal_came)
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        waiting.cancel()


@contextlib.contextmanager
def _signals(asked: asyncio.Event, insisted: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (insisted if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; EnvironmentFault says why there can be none."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named: asyncio sets TCP_NODELAY on such sockets only, and without it
        # every answer waits 40 ms for the caller's delayed acknowledgement.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
        return sock
    except socket.gaierror as error:
        raise EnvironmentFault(f"--host {host!r} is not an address: {error.strerror}") from error
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            text = f"port {port} on {host} is in use; stop what uses it, or choose another --port"
        elif number == errno.EACCES:
            text = f"port {port} needs privileges; choose a --port above 1023"
        elif number == errno.EADDRNOTAVAIL:
            text = f"this machine has no address {host}; use one of its own as --host"
        else:
            text = f"cannot listen on {host}, port {port}: {error}"
        raise EnvironmentFault(text) from error


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(_FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn", "httpx", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
