"""What an OpenAI-compatible server answers, as the target's ids.

Token ids are taken where the server gives them. Otherwise the text is tokenised, the end-of-turn id
is put back where generation stopped by itself, and the answer is marked. Refused is what lacks a
part of the generated text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.generation import Answer, SamplingParameters
from services.servers.base import CallRefused, PromptRefused, ServerUnavailable
from services.servers.http import EXCERPT_CHARACTERS
from services.servers.texts import TextCodec
from shared.errors import UpstreamError, WrongModelError

# A sampled answer need not be the canonical tokenisation of its text; it is close to it.
_MAX_DRIFT_SHARE = 0.2
_MAX_DRIFT_TOKENS = 8


def read_answer(
    tree: Any,
    where: str,
    codec: TextCodec,
    sampling: SamplingParameters,
    prompt_ids: Sequence[int],
    *,
    knows_prompt: bool,
) -> Answer:
    """The first choice of a completion or a chat completion.

    `knows_prompt`: the server tokenised the prompt itself, so its count is compared with ours.
    Raises PromptRefused, CallRefused, ServerUnavailable, WrongModelError, UpstreamError.
    """
    try:
        choice = tree["choices"][0]
        kind = choice["finish_reason"]
        message = choice.get("message")
        text = choice["text"] if message is None else message.get("content") or ""
        usage = tree.get("usage") or {}
        given_ids = choice.get("token_ids")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise UpstreamError(
            f"{where} does not answer with choices, text and finish_reason: "
            f"{str(tree)[:EXCERPT_CHARACTERS]}"
        ) from None
    if kind == "abort":
        raise ServerUnavailable(f"{where} gave up on the request")
    if kind not in ("stop", "length"):
        raise PromptRefused(
            f"{where} ended with the finish reason {kind!r}, not 'stop' or 'length': a part of the "
            "answer is missing"
        )
    if knows_prompt:
        _check_prompt(usage.get("prompt_tokens"), tree.get("prompt_token_ids"), prompt_ids, where)
    stopped = kind == "stop"
    if given_ids is not None:
        ids = [int(one) for one in given_ids]
        matched = choice.get("stop_reason")
        if stopped and matched in sampling.eos_ids and (not ids or ids[-1] != matched):
            ids.append(int(matched))
    else:
        _check_whole(message, where)
        ids = _tokenise(text, stopped, codec, usage.get("completion_tokens"), where)
    if ids and (min(ids) < 0 or max(ids) >= codec.vocab_size):
        raise WrongModelError(
            f"{where} generated token {max(ids)}, the target's vocabulary has {codec.vocab_size} "
            "entries: the server runs another model"
        )
    return Answer(ids, "stop" if stopped else "length", retokenised=given_ids is None)


def _check_prompt(
    counted: Any, theirs: Sequence[int] | None, prompt_ids: Sequence[int], where: str
) -> None:
    same = list(theirs) == list(prompt_ids) if theirs is not None else counted == len(prompt_ids)
    if not same and (theirs is not None or counted is not None):
        raise CallRefused(
            f"{where} worked on a prompt of {counted} tokens, the target's template and tokenizer "
            f"give {len(prompt_ids)}: the server renders or tokenises otherwise (chat template, "
            "thinking mode, special tokens in front). Set the server right, or use one that takes "
            "token ids"
        )


def _check_whole(message: Any, where: str) -> None:
    """A chat message from which nothing was taken out."""
    if message is None:
        return
    if message.get("reasoning_content") or message.get("reasoning"):
        raise CallRefused(
            f"{where} splits the reasoning off the answer, and how it was written cannot be told "
            "any more: start the server without its reasoning parser, or use "
            "generator.openai.prompt_form = 'ids' or 'text'"
        )
    if message.get("tool_calls"):
        raise PromptRefused(
            f"{where} took tool calls out of the answer, and how they were written cannot be told "
            "any more: start the server without its tool parser"
        )


def _tokenise(text: str, stopped: bool, codec: TextCodec, counted: Any, where: str) -> list[int]:
    ids = codec.encode(text)
    if stopped and (not ids or ids[-1] not in codec.eos_ids):
        ids.append(codec.eos_id)
    if isinstance(counted, int):
        drift = abs(len(ids) - counted)
        if drift > max(_MAX_DRIFT_TOKENS, _MAX_DRIFT_SHARE * counted):
            raise PromptRefused(
                f"{where} generated {counted} tokens, but its text has {len(ids)}: it leaves "
                "special tokens out of the text, or serves another tokenizer"
            )
    return ids
