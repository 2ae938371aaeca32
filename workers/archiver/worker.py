"""The archiver: a job (one export, one verification), or the run's continuous archive.

    lease with a job -> run_order beside a reporter of progress -> FINISHED, until drained
    lease without    -> `files` listener and scans -> passes -> last pass at drain

Both run at low priority, so that training and generation never wait for a copy. A drained job
stops where it is: what arrived stays, and a next attempt goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import ParamSpec

from services.links import Listener
from services.links.identity import LinkLimits
from services.object_stores import open_store
from services.secret_values import known_secrets
from shared.api.events import ExportProgress
from shared.config.loading import config_sha256
from shared.errors import ChannelClosed, EnvironmentFault, IntegrityError
from shared.messages import FileClosed
from shared.states import WorkerState
from workers.archiver.continuous import ArchiveState, ContinuousArchive, archive_until
from workers.archiver.documents import record_hardware, write_progress
from workers.archiver.export_job import ExportOrder, ExportStatus, RunIdentity, run_order
from workers.archiver.transfer import Tally
from workers.runtime import WorkerContext

logger = logging.getLogger(__name__)
P = ParamSpec("P")

NICENESS = 10
REPORT_S = 1.0
_LIMITS = LinkLimits(max_messages=64, max_bytes=4 * 2**20)


async def main(context: WorkerContext) -> None:
    """The role. Raises MeshError; a failed export is a result, not an error."""
    os.nice(NICENESS)
    await _keep(record_hardware, context.folder)
    if context.job is not None:
        await _run_job(context, ExportOrder.from_job(context.job))
    else:
        await _archive_run(context)


async def _keep(write: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Write a document beside the run's own files; where the disk refuses, the work goes on."""
    try:
        await asyncio.to_thread(write, *args, **kwargs)
    except (EnvironmentFault, OSError) as error:
        logger.warning("a document of the run is not up to date: %s", error)


async def _run_job(context: WorkerContext, order: ExportOrder) -> None:
    identity = _identity(context)
    if order.kind == "export":
        await _keep(write_progress, context.folder, identity.run_id, identity.run_name, None)
    status = ExportStatus(lambda status: _emit(context, order, status), Tally())
    context.set_state(WorkerState.RUNNING)
    store = open_store(order.destination)
    work = asyncio.create_task(
        run_order(order, store, context.folder, identity, status, _secrets(context))
    )
    reporter = asyncio.create_task(_report(context, order, status))
    drained = asyncio.create_task(context.draining.wait())
    try:
        await asyncio.wait([work, drained], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
            context.set_state(WorkerState.FINISHED)
            await drained
    finally:
        for task in (work, reporter, drained):
            task.cancel()
        await asyncio.gather(work, reporter, drained, return_exceptions=True)


async def _report(context: WorkerContext, order: ExportOrder, status: ExportStatus) -> None:
    """Progress once a second while there is some; changes of state report themselves."""
    last: tuple[int, int] | None = None
    while True:
        tally = status.tally
        context.metrics["archive_bytes_total"] = float(tally.bytes_sent)
        now = (tally.files_done, tally.bytes_done)
        if now != last and status.state in ("running", "verifying"):
            _emit(context, order, status)
            last = now
        await asyncio.sleep(REPORT_S)


def _emit(context: WorkerContext, order: ExportOrder, status: ExportStatus) -> None:
    tally = status.tally
    context.emit(
        ExportProgress,
        export_id=order.export_id,
        state=status.state,
        files_total=tally.files_total,
        files_done=tally.files_done,
        bytes_total=tally.bytes_total,
        bytes_done=tally.bytes_done,
        manifest_sha256=status.manifest_sha256,
        conflicts=sorted(set(tally.conflicts)),
        problems=list(tally.problems),
    )


async def _archive_run(context: WorkerContext) -> None:
    archive = ContinuousArchive(
        context.folder,
        _identity(context),
        context.config.archive.destination,
        _secrets(context),
    )
    wake = asyncio.Event()
    async with await Listener.bind(
        "files",
        context.identity,
        host=context.config.links.host,
        limits=_LIMITS,
        security=context.security,
        plane="zmq",
    ) as listener:
        context.endpoints["files"] = listener.endpoint
        context.set_state(WorkerState.RUNNING)
        listening = asyncio.create_task(_listen(listener, archive, wake))
        try:
            await archive_until(
                archive, context.draining, wake, lambda state: _measure(context, state)
            )
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening


async def _listen(listener: Listener, archive: ContinuousArchive, wake: asyncio.Event) -> None:
    """Take announcements; each only brings the next pass forward, so a lost one costs nothing."""
    while True:
        try:
            received = await listener.receive()
        except IntegrityError as error:
            logger.warning("a damaged announcement was dropped: %s", error)
            continue
        except ChannelClosed:
            return
        with received:
            if isinstance(received.payload, FileClosed):
                archive.heard(received.payload)
                wake.set()


def _measure(context: WorkerContext, state: ArchiveState) -> None:
    context.metrics["archive_bytes_total"] = float(state.bytes_sent)
    context.metrics["archive_files"] = float(len(state.archived))
    context.metrics["archive_backlog_bytes"] = float(state.backlog_bytes)
    context.last_error = state.problem


def _identity(context: WorkerContext) -> RunIdentity:
    return RunIdentity(context.run_id, context.config.name, config_sha256(context.config))


def _secrets(context: WorkerContext) -> tuple[bytes, ...]:
    config = context.config
    named = [config.supervision.webhook_env, config.generator.openai.api_key_env]
    return known_secrets(names=[name for name in named if name])
