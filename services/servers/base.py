"""What every kind of generation server offers, and the ways in which it fails.

UpstreamError
+-- PromptRefused       this prompt only; another attempt changes nothing
+-- CallRefused         the server lacks the call, or bars us from it; no prompt is at fault
+-- ServerUnavailable   broke off, or gave up, while it worked on the prompt; retry helps
|   +-- NotServed       turned away before any work: no connection, overload; retry helps
+-- ServersGone         no server has answered for too long
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from services.generation import Answer, SamplingParameters
from shared.errors import UpstreamError


class PromptRefused(UpstreamError):
    """The server is fine but does not take this prompt; another attempt changes nothing."""


class CallRefused(UpstreamError):
    """The server does not have this call, or does not let us use it; no prompt is at fault."""


class ServerUnavailable(UpstreamError):
    """The server broke off while it had the prompt: a later attempt may succeed."""

    retryable: ClassVar[bool] = True


class NotServed(ServerUnavailable):
    """The server never worked on the prompt, so that the prompt cannot be the cause."""


class ServersGone(UpstreamError):
    """No server has given an answer for longer than the configured limit."""


@dataclass(frozen=True, slots=True)
class Chat:
    """The conversation behind prompt ids, for servers that render it themselves."""

    messages: Sequence[Mapping[str, Any]]
    thinking: bool | None
    tools: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """What a server says of itself; None where it does not tell."""

    running_requests: int | None = None
    queued_requests: int | None = None
    tokens_per_s: float | None = None
    generated_tokens: int | None = None  # since its start
    cache_share: float | None = None


class GenerationServer(Protocol):
    """One server. Retries, balance and patience are the pool's."""

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""

    async def healthy(self) -> bool:
        """Whether it says that it is well; no error when it does not answer."""

    async def check(self, target_folder: Path) -> None:
        """WrongModelError when it serves something else than the target, UpstreamError when it
        does not answer as it should."""

    async def generate(
        self,
        prompt_ids: Sequence[int],
        seed: int,
        sampling: SamplingParameters,
        chat: Chat | None = None,
    ) -> Answer:
        """The target's answer. Raises the errors above, UpstreamTimeout, WrongModelError."""

    async def figures(self) -> ServerFigures:
        """Its load; empty figures from a server that offers none. UpstreamError if away."""

    async def close(self) -> None:
        """End its connections."""


def check_prompt_ids(prompt_ids: Sequence[int], vocab_size: int) -> None:
    """PromptRefused for an id without a row in the embedding: servers have died of such ids."""
    if not prompt_ids:
        raise PromptRefused("the prompt has no tokens")
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
        at = next(at for at, one in enumerate(prompt_ids) if not 0 <= one < vocab_size)
        raise PromptRefused(
            f"token {at} of the prompt is {prompt_ids[at]}, outside the target's vocabulary of "
            f"{vocab_size}: it is not sent, since a server may die of it. Tokenizer and model of "
            "the target do not belong together, or the prompt's ids are another model's"
        )
