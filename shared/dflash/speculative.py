"""Greedy speculative decoding, and plain greedy decoding to compare it with.

    prefill the prompt -> first token
    repeat: draft tokens after the last one -> one target pass over [last token, drafts]
            -> keep the longest prefix the target agrees with, and the target's own next token

The answer is the target's own greedy answer whatever the drafter proposes. The target's cache holds
every token but the last; rejected drafts are taken back from it. A drafter's context holds the same
tokens. One prompt at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from shared.dflash.acceptance import AcceptanceResult, FinishReason, PromptResult
from shared.dflash.drafters import Drafter
from shared.dflash.target import TargetModel
from shared.dflash.target_cache import TargetCache
from shared.errors import DataError

__all__ = [
    "AcceptanceResult",
    "PromptResult",
    "answer_room",
    "greedy_generate",
    "measure_acceptance",
    "speculative_generate",
]


def greedy_generate(
    target: TargetModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    eos_ids: Collection[int] | None = None,
) -> PromptResult:
    """The target's greedy answer, one token a pass.

    eos_ids: default the target's own. The answer ends with an end-of-text token ("stop"), or after
    max_new_tokens or at the target's context limit ("length"). Raises DataError for an empty prompt
    or one that fills the context.
    """
    eos = target.eos_ids if eos_ids is None else eos_ids
    room = answer_room(target, prompt_ids, max_new_tokens)
    cache = target.new_cache()
    fed = list(prompt_ids)
    answer: list[int] = []
    while True:
        hidden = target.step(_row(fed, target), cache).last_hidden[:, -1:]
        fed = _greedy(target, hidden)
        answer += fed
        if answer[-1] in eos or len(answer) == room:
            return PromptResult(answer, _reason(answer, eos), verification_steps=len(answer) - 1)


def speculative_generate(
    target: TargetModel,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    eos_ids: Collection[int] | None = None,
) -> PromptResult:
    """The same answer as `greedy_generate`, by verifying what `drafter` proposes."""
    eos = target.eos_ids if eos_ids is None else eos_ids
    room = answer_room(target, prompt_ids, max_new_tokens)
    layers = drafter.target_layer_ids
    cache = target.new_cache()
    drafter.start()
    first = target.step(_row(prompt_ids, target), cache, target_layer_ids=layers)
    drafter.extend(first.captured)
    text = [*prompt_ids, *_greedy(target, first.last_hidden[:, -1:])]
    start = len(prompt_ids)
    steps = drafted = accepted = 0
    while text[-1] not in eos and len(text) - start < room:
        # A verification gives one token more than it accepts, so the last token needs no draft.
        wanted = min(drafter.max_drafts, room - (len(text) - start) - 1)
        drafts = drafter.propose(text, wanted) if wanted else []
        before = None if cache.croppable else cache.copy()
        block = [text[-1], *drafts]
        step = target.step(_row(block, target), cache, target_layer_ids=layers)
        own = _greedy(target, step.last_hidden)
        agreed = _agreement(drafts, own)
        steps, drafted, accepted = steps + 1, drafted + len(drafts), accepted + agreed
        cache = _without_rejected(target, cache, before, block[: agreed + 1], len(drafts) - agreed)
        drafter.extend(None if step.captured is None else step.captured[:, : agreed + 1])
        for token in own[: agreed + 1]:
            text.append(token)
            if token in eos:
                break
    answer = text[start:]
    return PromptResult(answer, _reason(answer, eos), steps, drafted, accepted)


def measure_acceptance(
    target: TargetModel,
    drafter: Drafter,
    prompts: Iterable[Sequence[int]],
    max_new_tokens: int,
    eos_ids: Collection[int] | None = None,
    *,
    compare_with_greedy: bool = False,
    on_prompt: Callable[[PromptResult], None] | None = None,
) -> AcceptanceResult:
    """Decode every prompt speculatively; see `AcceptanceResult` for the figures.

    compare_with_greedy: also decode each prompt plainly and note whether the answers are equal.
    on_prompt: called after each prompt, for progress.
    """
    results = []
    for prompt_ids in prompts:
        result = speculative_generate(target, drafter, prompt_ids, max_new_tokens, eos_ids)
        if compare_with_greedy:
            plain = greedy_generate(target, prompt_ids, max_new_tokens, eos_ids)
            result = replace(result, equal_to_greedy=plain.token_ids == result.token_ids)
        results.append(result)
        if on_prompt is not None:
            on_prompt(result)
    return AcceptanceResult(results)


def answer_room(target: TargetModel, prompt_ids: Sequence[int], max_new_tokens: int) -> int:
    """Tokens an answer may have: max_new_tokens, or what the target's context leaves.

    Raises DataError for an empty prompt or one that leaves no room.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be at least 1")
    if not prompt_ids:
        raise DataError("the prompt is empty; give at least one token")
    room = target.max_length - len(prompt_ids)
    if room < 1:
        raise DataError(
            f"a prompt of {len(prompt_ids)} tokens leaves no room for an answer in the target's "
            f"context of {target.max_length} tokens; shorten it"
        )
    return min(room, max_new_tokens)


def _without_rejected(
    target: TargetModel,
    cache: TargetCache,
    before: TargetCache | None,
    kept: Sequence[int],
    num_rejected: int,
) -> TargetCache:
    """The cache after a verification of which only `kept` tokens stand."""
    if not num_rejected:
        return cache
    if before is None:
        cache.crop(cache.length - num_rejected)
        return cache
    target.step(_row(kept, target), before)
    return before


def _agreement(drafts: Sequence[int], own: Sequence[int]) -> int:
    """How many drafts, from the first, are what the target would have said."""
    for count, (draft, token) in enumerate(zip(drafts, own, strict=False)):
        if draft != token:
            return count
    return len(drafts)


def _greedy(target: TargetModel, hidden: Tensor) -> list[int]:
    """Most likely next token at each position of hidden [1, T, H]."""
    return target.head.logits(hidden)[0].argmax(dim=-1).tolist()


def _row(ids: Sequence[int], target: TargetModel) -> Tensor:
    return torch.tensor([list(ids)], device=target.device)


def _reason(answer: Sequence[int], eos: Collection[int]) -> FinishReason:
    return "stop" if answer[-1] in eos else "length"
