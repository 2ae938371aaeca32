"""What the generator's servers are doing, as metrics and queues of its heartbeats.

Queue `requests` is how many prompts are with the servers, of how many are worth it just now. Each
server N that tells has a queue `server_N` (requests it has, of which some wait) and the metrics
`server_N_running`, `server_N_queued`, `server_N_tokens_per_s`, `server_N_cache_share`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from services.servers import ServerFigures, ServerPool
from services.servers.pool import Member
from shared.api.workers import QueueReport
from shared.errors import UpstreamError
from workers.generator.in_flight import RequestSlots
from workers.runtime import WorkerContext

logger = logging.getLogger(__name__)
_INTERVAL_S = 5.0


@dataclass
class _Seen:
    """A server's last figures; counters become rates by difference."""

    figures: ServerFigures
    at_s: float


class ServerMonitor:
    """Asks the servers of a pool; add it to a worker's context with `attach`."""

    def __init__(self, context: WorkerContext, pool: ServerPool, slots: RequestSlots) -> None:
        self._context = context
        self._pool = pool
        self._slots = slots
        self._seen: dict[str, _Seen] = {}
        self._numbers: dict[str, int] = {}

    def attach(self) -> None:
        """Report the queue `requests` with every heartbeat."""
        self._context.add_queue("requests", self._requests)

    async def run(self) -> None:
        """Ask all servers now and then, until cancelled."""
        while True:
            await self.ask()
            await asyncio.sleep(_INTERVAL_S)  # a poll: servers push nothing

    async def ask(self) -> None:
        """Ask all servers once; one that does not answer keeps no figures."""
        members = self._pool.members
        await asyncio.gather(*(self._ask(member) for member in members))
        metrics = self._context.metrics
        metrics["servers_up"] = float(sum(one.breaker.state == "closed" for one in members))
        metrics["servers_total"] = float(len(self._numbers))

    async def _ask(self, member: Member) -> None:
        url = member.server.url
        number = self._numbers.setdefault(url, len(self._numbers))
        name = f"server_{number}"
        now_s = asyncio.get_running_loop().time()
        try:
            figures = await member.server.figures()
        except UpstreamError as error:
            logger.debug("no figures of %s: %s", url, error)
            figures = ServerFigures()
        rate = figures.tokens_per_s
        before = self._seen.get(url)
        if rate is None and figures.generated_tokens is not None and before is not None:
            earlier = before.figures.generated_tokens
            if earlier is not None and now_s > before.at_s:
                rate = max(0, figures.generated_tokens - earlier) / (now_s - before.at_s)
        self._seen[url] = _Seen(figures, now_s)
        values = {
            "running": figures.running_requests,
            "queued": figures.queued_requests,
            "tokens_per_s": rate,
            "cache_share": figures.cache_share,
        }
        for what, value in values.items():
            if value is None:
                self._context.metrics.pop(f"{name}_{what}", None)
            else:
                self._context.metrics[f"{name}_{what}"] = float(value)
        if figures.running_requests is not None:
            self._context.add_queue(name, lambda: self._server(name, url))

    def _requests(self) -> QueueReport:
        return QueueReport(
            name="requests",
            depth=self._slots.in_flight,
            capacity=self._slots.limit,
            bytes=0,
            capacity_bytes=0,
        )

    def _server(self, name: str, url: str) -> QueueReport:
        figures = self._seen[url].figures
        running = figures.running_requests or 0
        depth = running + (figures.queued_requests or 0)
        return QueueReport(name=name, depth=depth, capacity=running, bytes=0, capacity_bytes=0)
