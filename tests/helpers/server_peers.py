"""Server processes for tests, started and killed; and a generator that asks them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from shared.states import Role, WorkerState
from shared.tiny_target import model_folder
from tests.helpers.mesh_contexts import Workplace
from workers.generator import worker as generator_worker
from workers.runtime import WorkerContext

REPOSITORY = Path(__file__).parents[2]


@contextlib.contextmanager
def _process(module: str, *options: str) -> Iterator[str]:
    command = [sys.executable, "-m", module, "--model-path", str(model_folder())]
    with subprocess.Popen(
        [*command, "--port", "0", *options], stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().split()[1].decode()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def sglang_peer(*options: str) -> contextlib.AbstractContextManager[str]:
    """A process that speaks SGLang's native interface; its address."""
    return _process("tests.helpers.sglang_peer", *options)


def openai_peer(*options: str) -> contextlib.AbstractContextManager[str]:
    """A process that speaks OpenAI's interface the way several servers do; its address."""
    return _process("tests.helpers.openai_peer", *options)


async def run_generator(place: Workplace) -> tuple[WorkerContext, asyncio.Task[None]]:
    """A generator from its start to its end, whichever it is."""
    context = place.context(Role.GENERATOR)
    task = asyncio.create_task(generator_worker.main(context))
    try:
        await place.until(lambda: context.state is WorkerState.FINISHED or task.done())
    finally:
        context.drain()
        await asyncio.wait([task])
    return context, task


def first_error(task: asyncio.Task[None]) -> BaseException | None:
    """What a task ended with, taken out of its groups."""
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
