"""Group decoding: independence of rows, seeds, the sampling rule, and ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from shared.dflash.decoding import generate_group, sample
from shared.dflash.speculative import greedy_generate
from shared.dflash.target import TargetModel
from shared.errors import DataError

Load = Callable[[str], TargetModel]
PROMPTS = [[5], [1, 2, 3], list(range(20, 50)), [7, 8] * 10, [33, 4]]


@pytest.mark.parametrize("kind", ["qwen3", "llama", "sliding", "hybrid"])
def test_greedy_group_gives_each_prompts_greedy_answer(kind: str, load_target: Load) -> None:
    target = load_target(kind)
    eos = {greedy_generate(target, PROMPTS[2], 9).token_ids[-1]}
    alone = [greedy_generate(target, prompt, 40, eos) for prompt in PROMPTS]
    group = generate_group(target, PROMPTS, 40, 0.0, 1.0, [0] * 5, eos)
    assert [one.token_ids for one in group] == [one.token_ids for one in alone]
    assert [one.finish_reason for one in group] == [one.finish_reason for one in alone]
    assert "stop" in {one.finish_reason for one in group}


def test_an_answer_depends_on_prompt_and_seed(load_target: Load) -> None:
    target = load_target("qwen3")
    seeds = [11, 12, 13, 14, 15]
    first = generate_group(target, PROMPTS, 20, 0.9, 0.95, seeds)
    assert generate_group(target, PROMPTS, 20, 0.9, 0.95, seeds) == first
    other = generate_group(target, PROMPTS, 20, 0.9, 0.95, [11, 12, 13, 14, 99])
    assert other[:4] == first[:4] and other[4] != first[4]
    alone = generate_group(target, PROMPTS[1:2], 20, 0.9, 0.95, [12])
    assert alone[0] == first[1]


def test_same_prompt_with_two_seeds_differs(load_target: Load) -> None:
    pair = generate_group(load_target("qwen3"), [[5, 6]] * 2, 20, 1.5, 1.0, [1, 2])
    assert pair[0] != pair[1]


def test_each_row_ends_for_itself(load_target: Load) -> None:
    """At its own end token, at the limit of tokens, or where the context of 96 is full."""
    target = load_target("qwen3")
    prompts = [[n % 90 for n in range(90)], [3]]
    group = generate_group(target, prompts, 12, 0.0, 1.0, [0, 0], eos_ids=())
    assert [len(one.token_ids) for one in group] == [6, 12]
    assert {one.finish_reason for one in group} == {"length"}


def test_sampling_follows_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).expand(20_000, 4)
    draws = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for top_p, temperature, wanted in (
        (1.0, 1.0, [0.5, 0.3, 0.15, 0.05]),
        (0.75, 1.0, [0.625, 0.375, 0.0, 0.0]),
        (0.81, 1.0, [0.526, 0.316, 0.158, 0.0]),
        (0.3, 1.0, [1.0, 0.0, 0.0, 0.0]),
        (1.0, 0.5, [0.685, 0.247, 0.062, 0.007]),
    ):
        picked = sample(logits, draws, temperature, top_p)
        shares = torch.bincount(picked, minlength=4) / 20_000
        torch.testing.assert_close(shares, torch.tensor(wanted), atol=0.012, rtol=0)


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_extreme_draws_stay_in_the_vocabulary(top_p: float) -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(1))
    draws = torch.tensor([0.0, 1 - 1e-16], dtype=torch.float64)
    assert sample(logits, draws, 1.0, top_p).max() < 50


def test_refusals(load_target: Load) -> None:
    target = load_target("qwen3")
    with pytest.raises(ValueError, match="top_p"):
        generate_group(target, [[1]], 4, 1.0, 0.0, [0])
    with pytest.raises(ValueError, match="as many seeds"):
        generate_group(target, [[1]], 4, 1.0, 1.0, [])
    with pytest.raises(DataError, match="empty"):
        generate_group(target, [[1], []], 4, 1.0, 1.0, [0, 1])
    assert generate_group(target, [], 4, 1.0, 1.0, []) == []
