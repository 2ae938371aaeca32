"""From `python -m workers.<role> ...` to an exit code.

    arguments -> log -> registration -> [heartbeats beside the role's main] -> leave -> exit

SIGTERM and SIGINT ask the role to drain; a second one, or `drain_deadline_s` later, ends it. Exit
codes: 0 drained, finished or dismissed; 1 an error that a restart may cure; 3 a fatal error
(configuration, bad data) that the run fails with.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from services.control_plane import ControlPlaneClient
from services.links import LinkIdentity
from services.process_birth import process_birth
from shared.api.events import WorkerFailed
from shared.api.workers import WorkerRegistration
from shared.errors import EnvironmentFault, MeshError
from shared.states import Role, WorkerState
from workers.runtime.context import WorkerContext
from workers.runtime.files import FileAnnouncer
from workers.runtime.logs import log_to_stderr, log_to_worker_file
from workers.runtime.session import Session, WorkerDismissed, register

logger = logging.getLogger(__name__)

EXIT_DONE = 0
EXIT_RETRY = 1
EXIT_FATAL = 3
TOKEN_VARIABLE = "DFLASH_MESH_TOKEN"

RoleMain = Callable[[WorkerContext], Awaitable[None]]


@dataclass(frozen=True)
class WorkerArguments:
    """The command line of a worker."""

    url: str
    run_id: str
    rank: int
    incarnation: str
    job_id: str | None
    device: str


def run_worker(role: Role, main: RoleMain) -> NoReturn:
    """Run `main` as a worker of `role` with the arguments of this process, then exit.

    `main` returns when its work is done and `context.draining` is set, or raises MeshError.
    """
    arguments = parse_arguments(role, sys.argv[1:])
    log_to_stderr()
    sys.exit(asyncio.run(serve(role, main, arguments, token=os.environ.get(TOKEN_VARIABLE))))


def parse_arguments(role: Role, argv: list[str]) -> WorkerArguments:
    """The arguments of a worker; argparse exits with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog=f"python -m workers.{role}",
        description=f"A {role} of a run. Started by the control plane's launcher.",
    )
    parser.add_argument("--url", required=True, help="address of the control plane")
    parser.add_argument("--run", required=True, help="run id")
    parser.add_argument("--rank", required=True, type=int)
    parser.add_argument("--incarnation", required=True, help="hex, new for every start")
    parser.add_argument("--job", help="export or evaluation id")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:N")
    given = parser.parse_args(argv)
    return WorkerArguments(
        given.url, given.run, given.rank, given.incarnation, given.job, given.device
    )


async def serve(
    role: Role, main: RoleMain, arguments: WorkerArguments, *, token: str | None
) -> int:
    """Register, run `main` beside the heartbeats, leave; the exit code."""
    registration = WorkerRegistration(
        run_id=arguments.run_id,
        role=role,
        rank=arguments.rank,
        incarnation=arguments.incarnation,
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_birth=process_birth(os.getpid()) or "",
        device=shown_device(arguments.device),
        job_id=arguments.job_id,
    )
    async with ControlPlaneClient(arguments.url, token) as client:
        try:
            lease = await register(client, registration)
        except WorkerDismissed as reason:
            logger.info("not needed: %s", reason)
            return EXIT_DONE
        except MeshError as error:
            logger.error("registration failed: %s", error)
            return EXIT_RETRY if error.retryable else EXIT_FATAL
        identity = LinkIdentity(
            run_id=arguments.run_id,
            worker_id=lease.worker_id,
            role=role.value,
            rank=arguments.rank,
            incarnation=arguments.incarnation,
        )
        announcer = FileAnnouncer()
        context = WorkerContext(
            lease,
            identity,
            device=local_device(arguments.device),
            announce=announcer.announce,
        )
        with log_to_worker_file(context):
            logger.info("registered as %s (%s)", lease.worker_id, arguments.incarnation)
            session = Session(client, registration, context)
            return await _run_registered(context, session, announcer, main)


def local_device(device: str) -> str:
    """The name torch has here for the device the launcher chose.

    The launcher shows a worker one GPU only, so 'cuda:3' of the host is 'cuda:0' in the process.
    """
    return "cuda:0" if device.startswith("cuda") else device


def shown_device(device: str) -> str:
    """The device a person sees: 'auto' on a machine without an NVIDIA driver is the CPU."""
    has_driver = Path("/dev/nvidiactl").exists()
    return "cpu" if device == "auto" and not has_driver else device


async def _run_registered(
    context: WorkerContext, session: Session, announcer: FileAnnouncer, main: RoleMain
) -> int:
    with _drain_on_signals(context):
        beats = asyncio.create_task(session.run(), name="heartbeats")
        work = asyncio.ensure_future(main(context))
        files = asyncio.create_task(announcer.run(context), name="files")
        deadline = asyncio.create_task(_drain_deadline(context), name="deadline")
        tasks = [beats, work, files, deadline]
        try:
            await asyncio.wait(
                [beats, work, deadline, files, context.failure],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            error = await _settle(context, tasks)
        if isinstance(error, WorkerDismissed):
            logger.info("dismissed: %s", error)
            return EXIT_DONE
        if error is not None:
            return await _report_failure(context, session, error)
        context.set_state(WorkerState.EXITED)
        await session.close("drained" if context.draining.is_set() else "finished")
        logger.info("done")
        return EXIT_DONE


async def _settle(
    context: WorkerContext, tasks: Sequence[asyncio.Future[None]]
) -> BaseException | None:
    """Cancel what still runs; the error that ended the worker, the role's own first."""
    beats, work, files, deadline = tasks
    is_done = work.done()
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(beats, work, files, deadline, return_exceptions=True)
    if context.failure.done():
        return context.failure.exception()
    context.failure.cancel()
    ended = [results[1], results[0], results[3], results[2]]
    for result in ended:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            return result
    return None if is_done else EnvironmentFault("the worker ended before its work was done")


async def _report_failure(context: WorkerContext, session: Session, error: BaseException) -> int:
    causes = _leaves(error)
    cause = next((c for c in causes if isinstance(c, MeshError)), causes[0])
    is_retryable = not isinstance(cause, MeshError) or cause.retryable
    slug = cause.slug if isinstance(cause, MeshError) else MeshError.slug
    message = str(cause) if isinstance(cause, MeshError) else f"{type(cause).__name__}: {cause}"
    logger.error("failed: %s", message, exc_info=error)
    context.last_error = message[:4000]
    context.set_state(WorkerState.FAILED)
    context.emit(WorkerFailed, slug=slug, message=message[:4000], retryable=is_retryable)
    await session.close(None)
    return EXIT_RETRY if is_retryable else EXIT_FATAL


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


async def _drain_deadline(context: WorkerContext) -> None:
    await context.draining.wait()
    if context.role is Role.ARCHIVER:
        # An upload may take longer than any deadline of a drain; who stops a run kills it.
        await asyncio.Event().wait()
    deadline_s = context.config.supervision.drain_deadline_s
    await asyncio.sleep(deadline_s)
    raise TimeoutError(
        f"{context.role} {context.rank} did not drain within supervision.drain_deadline_s "
        f"({deadline_s:.0f} s)"
    )


@contextmanager
def _drain_on_signals(context: WorkerContext) -> Iterator[None]:
    """While inside, SIGTERM and SIGINT drain; a second one ends the process as usual."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def drain(number: signal.Signals) -> None:
        logger.info("%s: drains", number.name)
        loop.remove_signal_handler(number)
        context.drain()

    for number in numbers:
        loop.add_signal_handler(number, drain, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
