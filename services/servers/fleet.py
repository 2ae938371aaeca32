"""The SGLang servers that a run starts itself: one task for each keeps it going.

    start -> healthy, checked -> in the pool -> ended or silent -> out of the pool -> rest -> start

A server that ends, or that neither says that it is healthy nor answers a prompt for `unhealthy_s`,
is started again after a rest that doubles; past `max_restarts` in `restart_window_s` it is given
up. The others go on; when the last one is given up, `run` ends with its cause. The first start is
different: a server that does not come up at all is a mistake to be told at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from services.servers.flags import ServerPlan
from services.servers.launch import ServerProcess
from services.servers.pool import Member, ServerPool
from services.servers.sglang import SglangServer
from shared.config.servers import SglangSection
from shared.errors import MeshError, UpstreamError, WrongModelError

logger = logging.getLogger(__name__)
_HEALTH_INTERVAL_S = 5.0


class RestartLimit:
    """How long to rest before the next start, or that there is none. Pure; times in seconds."""

    def __init__(self, section: SglangSection) -> None:
        self._section = section
        self._starts_s: deque[float] = deque()

    def next_rest_s(self, now_s: float) -> float | None:
        """The rest before a restart at `now_s`, which is counted; None when it is one too many."""
        while self._starts_s and now_s - self._starts_s[0] > self._section.restart_window_s:
            self._starts_s.popleft()
        if len(self._starts_s) >= self._section.max_restarts:
            return None
        rest_s = self._section.breaker_backoff_s * 2.0 ** len(self._starts_s)
        self._starts_s.append(now_s)
        return min(rest_s, self._section.breaker_max_backoff_s)


class ServerFleet:
    """Use as an async context manager: inside, every server is healthy; outside, all are gone."""

    def __init__(
        self,
        section: SglangSection,
        model: Path,
        plans: Sequence[ServerPlan],
        log_path: Callable[[int], Path],
        *,
        tell: Callable[[str], None] = logger.warning,
    ) -> None:
        """`tell` gets a line for each server that ends, comes back, or is given up."""
        self._section = section
        self._model = model
        self._tell = tell
        self.processes = [
            ServerProcess(section, model, plan, log_path(plan.number)) for plan in plans
        ]
        self._num_given_up = 0
        self.num_restarts = 0

    async def __aenter__(self) -> ServerFleet:
        """Raises what ServerProcess.start raises, of the first server that fails."""
        starts = [asyncio.create_task(process.start()) for process in self.processes]
        try:
            for start in asyncio.as_completed(starts):
                await start
        except BaseException:
            for task in starts:
                task.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self._stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stop()

    async def run(self, pool: ServerPool) -> None:
        """Keep all servers going and in `pool`, until cancelled.

        WrongModelError from the first check; UpstreamError when all servers are given up.
        """
        async with asyncio.TaskGroup() as group:
            for process in self.processes:
                group.create_task(self._keep(process, pool), name=f"keep {process.url}")

    async def _keep(self, process: ServerProcess, pool: ServerPool) -> None:
        limit = RestartLimit(self._section)
        is_started = True
        while True:
            try:
                if not is_started:
                    await process.start()
                    self._tell(f"sglang server {process.plan.number} is back at {process.url}")
                is_started = False
                cause = await self._serve(process, pool)
            except WrongModelError:
                raise
            except UpstreamError as error:
                cause = f"failed: {error.detail}"
            finally:
                await process.stop()
            rest_s = limit.next_rest_s(asyncio.get_running_loop().time())
            if rest_s is None:
                return self._give_up(process, cause)
            self.num_restarts += 1
            self._tell(
                f"sglang server {process.plan.number} starts again in {rest_s:.1f} s: it {cause}"
            )
            await asyncio.sleep(rest_s)  # backoff, bounded by breaker_max_backoff_s

    async def _serve(self, process: ServerProcess, pool: ServerPool) -> str:
        """Have a healthy server answer for the pool until it ends or falls silent; the cause."""
        async with SglangServer(process.url, self._section) as server:
            await server.check(self._model)
            member = pool.add(server)
            try:
                return await self._watch(process, member)
            finally:
                pool.remove(server)

    async def _watch(self, process: ServerProcess, member: Member) -> str:
        clock = asyncio.get_running_loop()
        ended = asyncio.create_task(process.wait_ended())
        well_s = clock.time()
        try:
            while True:
                await asyncio.wait([ended], timeout=_HEALTH_INTERVAL_S)
                if ended.done():
                    return ended.result()
                if await member.server.healthy():
                    well_s = clock.time()
                # A busy server may be slow to say that it is well; its answers say it too.
                silent_s = clock.time() - max(well_s, member.last_answer_s)
                if silent_s > self._section.unhealthy_s:
                    return f"was silent for {silent_s:.0f} s (generator.sglang.unhealthy_s)"
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    def _give_up(self, process: ServerProcess, cause: str) -> None:
        self._num_given_up += 1
        message = (
            f"sglang server {process.plan.number} is given up after {self._section.max_restarts} "
            f"restarts in {self._section.restart_window_s:.0f} s (generator.sglang.max_restarts); "
            f"it {cause}"
        )
        if self._num_given_up == len(self.processes):
            raise UpstreamError(message)
        self._tell(message)

    async def _stop(self) -> None:
        results = await asyncio.gather(
            *(process.stop() for process in self.processes), return_exceptions=True
        )
        for result in results:
            if isinstance(result, MeshError):
                logger.warning("%s", result)
            elif isinstance(result, BaseException):
                raise result
