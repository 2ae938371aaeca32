"""Several servers as one: balance, retries, and servers that come and go.

    generate -> member with the fewest outstanding tokens whose circuit admits -> its server
                | none admits: waits for a rest to end, a member to come, or `all_down_limit_s`

A failure that another attempt may mend goes to another member, or to the same one when there is no
other, at most `max_retries` times. Being turned away before any work (no connection, overload) uses
up no attempt: it is the server's matter, bounded by its circuit breaker and by `all_down_limit_s`.
Not tried again are a refused prompt, an answer out of time, and another model.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.generation import Answer, SamplingParameters
from services.servers.base import (
    CallRefused,
    Chat,
    GenerationServer,
    NotServed,
    PromptRefused,
    ServersGone,
    ServerUnavailable,
    check_prompt_ids,
)
from services.servers.breaker import Circuit, CircuitBreaker
from shared.config.servers import ServersSection
from shared.errors import UpstreamError, WrongModelError

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Member:
    """A server of the pool and what is known of it."""

    server: GenerationServer
    breaker: CircuitBreaker
    outstanding_tokens: int = 0
    num_answers: int = 0
    last_answer_s: float = field(default=0.0)


class ServerPool:
    """The servers of a run; close it in the end. `vocab_size` bounds the ids that are sent."""

    def __init__(
        self,
        servers: Iterable[GenerationServer],
        section: ServersSection,
        *,
        vocab_size: int,
        patience_s: float = 0.0,
    ) -> None:
        """`patience_s` is added to `all_down_limit_s`, for servers that are being started."""
        self._section = section
        self._vocab_size = vocab_size
        self._all_down_limit_s = section.all_down_limit_s + patience_s
        self._members: list[Member] = []
        self._changed = asyncio.Event()
        self._down_since_s: float | None = None
        self._last_failure: UpstreamError | None = None
        self._look()
        for server in servers:
            self.add(server)

    async def __aenter__(self) -> ServerPool:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        for member in self._members:
            await member.server.close()

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(self._members)

    def add(self, server: GenerationServer) -> Member:
        """Send requests to `server` too; it has been checked."""
        section = self._section
        breaker = CircuitBreaker(
            max_failures=section.breaker_failures,
            backoff_s=section.breaker_backoff_s,
            max_backoff_s=section.breaker_max_backoff_s,
        )
        member = Member(server, breaker)
        self._members.append(member)
        self._look()
        return member

    def remove(self, server: GenerationServer) -> None:
        """Send nothing more to `server`; what is under way there ends by itself."""
        self._members = [member for member in self._members if member.server is not server]
        self._look()

    async def until_up(self) -> None:
        """Until a member is there that is not left alone."""
        while self._down_since_s is not None:
            await self._changed.wait()

    async def check(self, target_folder: Path) -> None:
        """Every server answers and serves the target."""
        for member in self._members:
            await member.server.check(target_folder)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        seed: int,
        sampling: SamplingParameters,
        chat: Chat | None = None,
    ) -> Answer:
        """One answer, from whichever server is free.

        Raises the last attempt's UpstreamError, ServersGone when all are down for too long, and
        PromptRefused, without sending it, for a prompt with ids outside the vocabulary.
        """
        check_prompt_ids(prompt_ids, self._vocab_size)
        num_tokens = len(prompt_ids) + sampling.max_new_tokens
        failed: list[Member] = []
        num_attempts = 0
        while True:
            member, is_probe = await self._pick(failed)
            member.outstanding_tokens += num_tokens
            try:
                answer = await member.server.generate(prompt_ids, seed, sampling, chat)
            except (PromptRefused, CallRefused, WrongModelError):
                self._succeeded(member)  # it lives, whatever it said
                raise
            except UpstreamError as error:
                self._failed(member, error, is_probe)
                num_attempts += not isinstance(error, NotServed)
                if not _may_help(error) or num_attempts > self._section.max_retries:
                    raise
                failed.append(member)
            except BaseException:
                member.breaker.abandon(_now_s(), is_probe=is_probe)
                self._look()
                raise
            else:
                self._succeeded(member)
                return answer
            finally:
                member.outstanding_tokens -= num_tokens

    async def _pick(self, failed: Sequence[Member]) -> tuple[Member, bool]:
        """A member that admits a request, rather one that has not failed this one; and whether
        the request is its probe."""
        while True:
            now_s = _now_s()
            ready = [member for member in self._members if member.breaker.admits(now_s)]
            if ready:
                member = min(ready, key=lambda one: (one in failed, one.outstanding_tokens))
                return member, member.breaker.begin(now_s)
            await self._wait(now_s)

    async def _wait(self, now_s: float) -> None:
        """Until a member may admit again, or ServersGone."""
        assert self._down_since_s is not None
        give_up_s = self._down_since_s + self._all_down_limit_s
        if any(one.breaker.state is Circuit.HALF_OPEN for one in self._members):
            give_up_s = math.inf  # the probe has its own time limit
        if now_s >= give_up_s:
            cause = self._last_failure.detail if self._last_failure else "no server has started"
            raise ServersGone(
                f"no server has answered for {self._all_down_limit_s:.0f} s "
                f"({self._section.path}.all_down_limit_s); the last failure: {cause}"
            )
        rests = [
            member.breaker.retry_at_s
            for member in self._members
            if member.breaker.state is Circuit.OPEN
        ]
        until_s = min([give_up_s, *rests])
        try:
            async with asyncio.timeout_at(None if until_s == math.inf else until_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _succeeded(self, member: Member) -> None:
        member.num_answers += 1
        member.last_answer_s = _now_s()
        if member.breaker.state is not Circuit.CLOSED:
            logger.info("%s answers again", member.server.url)
        member.breaker.succeed()
        if self._down_since_s is not None:
            self._look()

    def _failed(self, member: Member, error: UpstreamError, is_probe: bool) -> None:
        self._last_failure = error
        now_s = _now_s()
        if member.breaker.fail(now_s, is_probe=is_probe):
            rest_s = member.breaker.retry_at_s - now_s
            logger.warning("%s; the server is left alone for %.1f s", error, rest_s)
            self._look()

    def _look(self) -> None:
        """Note since when no server answers, and wake who waits for a change."""
        is_up = any(one.breaker.state is Circuit.CLOSED for one in self._members)
        if is_up:
            self._down_since_s = None
        elif self._down_since_s is None:
            self._down_since_s = _now_s()
        self._changed.set()
        self._changed = asyncio.Event()


def _may_help(error: UpstreamError) -> bool:
    """Whether the same request may succeed soon: the server is away, or failed inside once."""
    return isinstance(error, ServerUnavailable) or type(error) is UpstreamError


def _now_s() -> float:
    return asyncio.get_running_loop().time()
