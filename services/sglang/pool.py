"""Several SGLang servers as one: balance, retries, and servers that are away for a while.

A request goes to the server with the fewest outstanding tokens. When a server cannot be reached or
is overloaded, it rests (exponential backoff) and the request goes to another one, or waits for the
first to come back. Retries stop after `max_retries`, and are not made where they cannot help: a
refused prompt, an answer out of time, another model.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.generation import Answer, SamplingParameters
from services.sglang.client import ServerUnavailable, SglangClient
from shared.config.sampling import SglangSection
from shared.errors import UpstreamError

logger = logging.getLogger(__name__)
_BACKOFF_S = 0.25
_MAX_BACKOFF_S = 15.0


@dataclass
class _Member:
    client: SglangClient
    outstanding_tokens: int = 0
    num_failures: int = 0  # in a row
    rests_until_s: float = field(default=0.0)


class SglangPool:
    """The servers of a run; close it in the end."""

    def __init__(
        self, urls: Sequence[str], section: SglangSection, *, max_connections: int = 256
    ) -> None:
        self._section = section
        self._members = [
            _Member(SglangClient(url, section, max_connections=max_connections)) for url in urls
        ]

    async def __aenter__(self) -> SglangPool:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        for member in self._members:
            await member.client.close()

    async def check(self, target_folder: Path) -> None:
        """Every server answers and serves the target; see SglangClient.check."""
        for member in self._members:
            await member.client.check(target_folder)

    async def generate(
        self, prompt_ids: Sequence[int], seed: int, sampling: SamplingParameters
    ) -> Answer:
        """One answer, from whichever server is free. Raises the last attempt's UpstreamError."""
        num_tokens = len(prompt_ids) + sampling.max_new_tokens
        failed: UpstreamError | None = None
        for _ in range(self._section.max_retries + 1):
            member = await self._pick()
            member.outstanding_tokens += num_tokens
            try:
                answer = await member.client.generate(prompt_ids, seed, sampling)
            except UpstreamError as error:
                failed = error
                if not _may_help(error):
                    raise
                self._rest(member, error)
            else:
                member.num_failures = 0
                return answer
            finally:
                member.outstanding_tokens -= num_tokens
        assert failed is not None
        raise failed

    async def _pick(self) -> _Member:
        """The least loaded server that does not rest; waits for the first when all rest."""
        now_s = asyncio.get_running_loop().time()
        awake = [member for member in self._members if member.rests_until_s <= now_s]
        if awake:
            return min(awake, key=lambda member: member.outstanding_tokens)
        first = min(self._members, key=lambda member: member.rests_until_s)
        await asyncio.sleep(first.rests_until_s - now_s)  # backoff, bounded by _MAX_BACKOFF_S
        return first

    def _rest(self, member: _Member, error: UpstreamError) -> None:
        now_s = asyncio.get_running_loop().time()
        if member.rests_until_s > now_s:
            return  # another request has found out already
        rest_s = min(_BACKOFF_S * 2**member.num_failures, _MAX_BACKOFF_S)
        member.num_failures += 1
        member.rests_until_s = now_s + rest_s
        logger.warning("%s; the server rests %.1f s", error, rest_s)


def _may_help(error: UpstreamError) -> bool:
    """Whether the same request may succeed soon: the server is away, or failed inside once."""
    return isinstance(error, ServerUnavailable) or type(error) is UpstreamError
