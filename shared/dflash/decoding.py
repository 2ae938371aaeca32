"""Answers for a group of prompts at once: what the embedded generation engine runs.

Rows are padded on the left to the longest prompt and decoded together; rows that have ended are
taken out of the batch once they are a quarter of it. Every prompt has a random generator of its
own, seeded by the caller, so an answer depends on its prompt and seed, not on how far its
neighbours got.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shared.dflash.acceptance import FinishReason
from shared.dflash.speculative import answer_room
from shared.dflash.target import TargetModel


@dataclass(frozen=True)
class GeneratedIds:
    """An answer: token_ids with its end-of-text token, and why it ended."""

    token_ids: list[int]
    finish_reason: FinishReason


@torch.inference_mode()
def generate_group(
    target: TargetModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seeds: Sequence[int],
    eos_ids: Collection[int] | None = None,
) -> list[GeneratedIds]:
    """One answer for each prompt, in their order.

    temperature: 0 for greedy answers, which need no seed. top_p: share of probability kept, in
    (0, 1]. seeds: one a prompt. eos_ids: default the target's own. Raises ValueError for sampling
    parameters out of range and DataError for prompts that are empty or fill the context.
    """
    if temperature < 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature {temperature} must be >= 0 and top_p {top_p} in (0, 1]")
    if len(seeds) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many seeds, not {len(seeds)}")
    if not prompts:
        return []
    eos = target.eos_ids if eos_ids is None else eos_ids
    rooms = [answer_room(target, prompt, max_new_tokens) for prompt in prompts]
    draws = _draws(seeds, max(rooms), target.device) if temperature > 0 else None
    answers: list[list[int]] = [[] for _ in prompts]
    reasons: list[FinishReason] = ["length"] * len(prompts)

    rows = list(range(len(prompts)))
    fed, visible = _left_padded(prompts, target.device)
    positions = visible.cumsum(dim=1).sub_(1).clamp_(min=0)
    padded = not bool(visible.all())
    cache = target.new_cache()
    ended: set[int] = set()
    for number in range(max(rooms)):
        step = target.step(
            fed,
            cache,
            attention_mask=visible if padded else None,
            position_ids=positions if padded else None,
        )
        logits = target.head.logits(step.last_hidden[:, -1])
        picked = (
            logits.argmax(dim=-1)
            if draws is None
            else sample(logits, draws[rows, number], temperature, top_p)
        )
        for row, token in zip(rows, picked.tolist(), strict=True):
            if row in ended:
                continue
            answers[row].append(token)
            if token in eos:
                reasons[row] = "stop"
            if token in eos or len(answers[row]) == rooms[row]:
                ended.add(row)
        live = [place for place, row in enumerate(rows) if row not in ended]
        if not live:
            break
        fed, positions = picked[:, None], positions[:, -1:] + 1
        if len(live) <= 0.75 * len(rows):
            kept = torch.tensor(live, device=target.device)
            cache.select_rows(kept)
            fed, positions, visible = fed[kept], positions[kept], visible[kept]
            rows = [rows[place] for place in live]
        visible = torch.cat((visible, visible.new_ones(len(rows), 1)), dim=1)
    return [GeneratedIds(*one) for one in zip(answers, reasons, strict=True)]


def sample(logits: Tensor, draws: Tensor, temperature: float, top_p: float) -> Tensor:
    """One token a row: int64 [B] from logits [B, V] and uniform draws [B] in [0, 1).

    The draw is looked up in the cumulative distribution: of all tokens in order when top_p is 1,
    else of the tokens, most likely first, until they pass top_p; the most likely one always stays.
    """
    probabilities = torch.softmax(logits.double() / temperature, dim=-1)
    if top_p == 1:
        total = probabilities.cumsum(dim=-1)
        place = torch.searchsorted(total, draws[:, None] * total[:, -1:], right=True)
        return place.clamp_(max=logits.shape[1] - 1).squeeze(1)
    likely, order = probabilities.sort(dim=-1, descending=True, stable=True)
    total = likely.cumsum(dim=-1)
    kept = (total - likely < top_p).sum(dim=-1, keepdim=True)
    mass = total.gather(1, kept - 1)
    place = torch.searchsorted(total, draws[:, None] * mass, right=True)
    return order.gather(1, torch.minimum(place, kept - 1)).squeeze(1)


def _draws(seeds: Sequence[int], count: int, device: torch.device) -> Tensor:
    """Uniform numbers float64 [B, count], each row from its own generator of the CPU."""
    rows = [
        torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for seed in seeds
    ]
    return torch.stack(rows).to(device)


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and visibility (1 for a token, 0 for padding), int64 [B, longest] each."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    visible = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(list(prompt))
        visible[row, longest - len(prompt) :] = 1
    return ids.to(device), visible.to(device)
