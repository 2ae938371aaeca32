"""The servers of a run as its configuration has them: attached, or started and kept going.

A generator that starts servers uses its own `device`'s GPUs: those of CUDA_VISIBLE_DEVICES, else
all of the host.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.data.tokenizer import TargetTokenizer
from services.hardware import num_gpus
from services.servers import OpenaiServer, ServerFleet, ServerPool, SglangServer
from services.servers.flags import ServerPlan, plan_servers, visible_gpus
from services.servers.launch import free_ports
from shared.config.servers import OpenaiSection, SglangSection
from shared.errors import EnvironmentFault
from workers.runtime import WorkerContext


@asynccontextmanager
async def open_servers(
    context: WorkerContext, folder: Path, tokenizer: TargetTokenizer
) -> AsyncIterator[ServerPool]:
    """A pool of servers that have been checked against the target in `folder`.

    Raises EnvironmentFault, UpstreamError, UpstreamTimeout, WrongModelError; also from inside, when
    servers of the run cannot be kept going.
    """
    section = context.config.generator
    if section.engine == "openai":
        key = _api_key(section.openai)
        servers = [
            OpenaiServer(url, section.openai, tokenizer, api_key=key) for url in section.openai.urls
        ]
        async with ServerPool(servers, section.openai, vocab_size=tokenizer.vocab_size) as pool:
            await pool.check(folder)
            yield pool
    elif section.sglang.urls:
        attached = [SglangServer(url, section.sglang) for url in section.sglang.urls]
        async with ServerPool(attached, section.sglang, vocab_size=tokenizer.vocab_size) as pool:
            await pool.check(folder)
            yield pool
    else:
        async with _own_servers(context, section.sglang, folder, tokenizer.vocab_size) as pool:
            yield pool


@asynccontextmanager
async def _own_servers(
    context: WorkerContext, section: SglangSection, folder: Path, vocab_size: int
) -> AsyncIterator[ServerPool]:
    plans = await asyncio.to_thread(_plans, section)
    context.milestone(f"starting {len(plans)} SGLang servers")

    def log_path(number: int) -> Path:
        return context.folder.log("sglang", number)

    def tell(message: str) -> None:
        context.milestone(message)
        context.metrics["server_restarts"] = float(fleet.num_restarts)

    fleet = ServerFleet(section, folder, plans, log_path, tell=tell)
    async with (
        fleet,
        ServerPool([], section, vocab_size=vocab_size, patience_s=section.startup_s) as pool,
        asyncio.TaskGroup() as group,
    ):
        keeping = group.create_task(fleet.run(pool), name="keep servers")
        try:
            await pool.until_up()
            yield pool
        finally:
            keeping.cancel()


def _plans(section: SglangSection) -> list[ServerPlan]:
    gpus = visible_gpus(os.environ, num_gpus())
    most = section.num_servers or max(1, len(gpus))
    return plan_servers(section, gpus, free_ports(most))


def _api_key(section: OpenaiSection) -> str | None:
    """The key from the environment; it goes nowhere but into the requests."""
    if section.api_key_env is None:
        return None
    key = os.environ.get(section.api_key_env, "").strip()
    if not key:
        raise EnvironmentFault(
            f"generator.openai.api_key_env names {section.api_key_env}, which is not set where the "
            "generator runs: set it for `dflash-mesh up`"
        )
    return key
