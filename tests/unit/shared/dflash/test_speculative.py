"""Speculative decoding: the target's own greedy tokens whatever is drafted, and honest counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shared.dflash.acceptance import AcceptanceResult, PromptResult
from shared.dflash.batch import DrafterBatch, DrafterSample, collate
from shared.dflash.config import DrafterConfig
from shared.dflash.drafters import DFlashDrafter
from shared.dflash.model import DFlashDraftModel
from shared.dflash.objective import draft_hidden, training_terms
from shared.dflash.optimizer import DrafterOptimizer
from shared.dflash.prompt_lookup import PromptLookupDrafter
from shared.dflash.speculative import greedy_generate, measure_acceptance, speculative_generate
from shared.dflash.target import TargetModel
from shared.errors import DataError

Load = Callable[[str], TargetModel]
Make = Callable[..., DFlashDraftModel]
PROMPTS = [[5], [1, 2, 3], [7, 8] * 20]


@dataclass
class Script:
    """Drafts a known text, wrong at given places: every accepted length can be made to happen."""

    text: Sequence[int]
    wrong: frozenset[int] = frozenset()
    max_drafts: int = 3
    target_layer_ids: tuple[int, ...] = (2,)
    context: list[int] = field(default_factory=list)

    def start(self) -> None:
        self.context = []

    def extend(self, captured: Tensor | None) -> None:
        assert captured is not None and captured.shape[2] == 32
        self.context.append(captured.shape[1])

    def propose(self, tokens: Sequence[int], num_drafts: int) -> list[int]:
        assert sum(self.context) == len(tokens) - 1
        start = len(tokens)
        return [
            (token + 1) % 90 if start + n in self.wrong else token
            for n, token in enumerate(self.text[start : start + num_drafts])
        ]


@pytest.mark.parametrize("kind", ["qwen3", "llama", "sliding", "hybrid"])
@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_any_drafter_gives_the_greedy_answer(
    kind: str, block_size: int, load_target: Load, make_drafter: Make
) -> None:
    target = load_target(kind)
    model = make_drafter(
        block_size=block_size,
        layer_types=("sliding_attention", "full_attention"),
        sliding_window=6,
    )
    for drafter in (DFlashDrafter(model, target.head), PromptLookupDrafter(block_size - 1)):
        result = measure_acceptance(target, drafter, PROMPTS, 24, compare_with_greedy=True)
        assert result.num_equal_to_greedy == len(PROMPTS)
        assert result.generated_tokens == 24 * len(PROMPTS)


@pytest.mark.parametrize("kind", ["qwen3", "sliding", "hybrid"])
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_every_pattern_of_acceptance(kind: str, load_target: Load, data: st.DataObject) -> None:
    target = load_target(kind)
    prompt = data.draw(st.lists(st.integers(0, 90), min_size=1, max_size=6))
    answer = greedy_generate(target, prompt, 24).token_ids
    text = [*prompt, *answer]
    wrong = data.draw(st.frozensets(st.integers(len(prompt), len(text)), max_size=8))
    size = data.draw(st.sampled_from([4, 8, 16]))
    result = speculative_generate(target, Script(text, wrong, size - 1), prompt, 24)
    assert result.token_ids == answer


def test_perfect_and_useless_drafters(load_target: Load) -> None:
    target, prompt = load_target("qwen3"), [3, 1, 4]
    answer = greedy_generate(target, prompt, 33)
    text = [*prompt, *answer.token_ids]
    perfect = speculative_generate(target, Script(text), prompt, 33)
    # The prefill gives one token, each of eight steps three drafts and the target's own.
    assert (perfect.verification_steps, perfect.num_accepted) == (8, 24)
    useless = speculative_generate(target, Script(text, frozenset(range(99))), prompt, 33)
    assert (useless.verification_steps, useless.num_accepted) == (32, 0)
    assert perfect.token_ids == useless.token_ids == answer.token_ids
    assert answer.verification_steps == 32


@pytest.mark.parametrize("place", range(8))
def test_end_of_text_anywhere_in_a_block(place: int, load_target: Load) -> None:
    """The end token is accepted as a draft or said by the target; nothing follows it."""
    target, prompt = load_target("llama"), [9, 2]
    answer = greedy_generate(target, prompt, 20).token_ids
    eos = {answer[place]}
    end = answer.index(answer[place]) + 1
    plain = greedy_generate(target, prompt, 20, eos)
    assert (plain.token_ids, plain.finish_reason) == (answer[:end], "stop")
    for wrong in (frozenset(), frozenset({2 + place}), frozenset({2 + place - 1})):
        script = Script([*prompt, *answer], wrong, max_drafts=7)
        result = speculative_generate(target, script, prompt, 20, eos)
        assert (result.token_ids, result.finish_reason) == (answer[:end], "stop")


@pytest.mark.parametrize("block_size", [4, 8, 16])
@pytest.mark.parametrize("kind", ["qwen3", "hybrid"])
def test_context_limit(kind: str, block_size: int, load_target: Load, make_drafter: Make) -> None:
    """Prompt and answer together stop at max_position_embeddings, 96 here."""
    target = load_target(kind)
    prompt = [n % 90 for n in range(80)]
    drafter = DFlashDrafter(make_drafter(block_size=block_size), target.head)
    result = speculative_generate(target, drafter, prompt, 1000)
    assert len(result.token_ids) == 16 and result.finish_reason == "length"
    assert result.token_ids == greedy_generate(target, prompt, 1000).token_ids
    answer = greedy_generate(target, prompt, 1000).token_ids
    exact = speculative_generate(target, Script([*prompt, *answer], max_drafts=7), prompt, 1000)
    assert exact.token_ids == answer
    last = speculative_generate(target, drafter, prompt + [1] * 15, 5)
    assert len(last.token_ids) == 1 and last.verification_steps == 0


def test_prompts_that_cannot_be_answered(load_target: Load) -> None:
    target = load_target("qwen3")
    for decode in (
        lambda prompt: greedy_generate(target, prompt, 4),
        lambda prompt: speculative_generate(target, PromptLookupDrafter(3), prompt, 4),
    ):
        with pytest.raises(DataError, match="empty"):
            decode([])
        with pytest.raises(DataError, match="a prompt of 96 tokens leaves no room"):
            decode([1] * 96)


@pytest.mark.parametrize("sliding", [False, True])
def test_decoding_drafts_what_training_predicts(
    sliding: bool, load_target: Load, make_drafter: Make
) -> None:
    """Block for block: the incremental context gives the logits of the training pass."""
    target = load_target("qwen3")
    kinds = ("sliding_attention", "full_attention") if sliding else ()
    model = make_drafter(block_size=8, layer_types=kinds, sliding_window=6 if sliding else None)
    text = torch.randint(0, 90, (1, 40), generator=torch.Generator().manual_seed(1))
    anchors = torch.tensor([[6, 7, 12, 30]])
    batch = DrafterBatch(
        text,
        torch.ones_like(text, dtype=torch.bool),
        target.hidden_states(text, None, model.config.target_layer_ids),
        anchors,
        torch.ones_like(anchors, dtype=torch.bool),
    )
    with torch.no_grad():
        hidden = draft_hidden(model, target.head, batch, batch.layout(8))
    predicted = target.head.logits(hidden)[0, :, 1:]
    drafter = DFlashDrafter(model, target.head)
    drafter.start()
    before = 0
    for number, anchor in enumerate(anchors[0].tolist()):
        drafter.extend(batch.target_hidden_states[:, before:anchor])
        logits = drafter.draft_logits(int(text[0, anchor]))
        torch.testing.assert_close(logits, predicted[number], atol=1e-5, rtol=1e-4)
        drafts = drafter.propose(text[0, : anchor + 1].tolist(), 5)
        assert drafts == predicted[number, :5].argmax(-1).tolist()
        before = anchor


def test_a_trained_drafter_is_accepted(load_target: Load) -> None:
    """The whole loop in small: the target's answers, its states, training, and the measure."""
    target = load_target("qwen3")
    config = DrafterConfig.for_target(
        target.config, num_hidden_layers=1, block_size=4, mask_token_id=95, target_layer_ids=(1, 4)
    )
    model = DFlashDraftModel(config)
    model.initialise(torch.Generator().manual_seed(0))
    drafter = DFlashDrafter(model, target.head)
    prompts = [[n, 2 * n % 90] for n in range(4)]
    untrained = measure_acceptance(target, drafter, prompts, 40).acceptance_length
    samples = []
    for number, prompt in enumerate(prompts):
        text = torch.tensor([*prompt, *greedy_generate(target, prompt, 40).token_ids])
        states = target.hidden_states(text[None], None, config.target_layer_ids)[0]
        mask = torch.arange(len(text)) >= len(prompt)
        samples.append(DrafterSample(number, text, mask, states))
    optimizer = DrafterOptimizer(model)
    for epoch in range(90):
        batch = collate(samples, num_anchors=40, run_seed=0, epoch=epoch)
        terms = training_terms(model, target.head, batch)
        terms.loss_sum.backward()
        optimizer.step(4e-3, terms.weight_sum)
    result = measure_acceptance(target, drafter, prompts, 40, compare_with_greedy=True)
    assert untrained < 1.5
    assert result.acceptance_length > 2.5, result.acceptance_length
    assert result.num_equal_to_greedy == len(prompts)


def test_named_averages() -> None:
    """Two prompts of unequal length tell the averages apart."""
    long = PromptResult([1] * 13, "length", verification_steps=4, num_drafted=12, num_accepted=8)
    short = PromptResult([1] * 3, "stop", verification_steps=2, num_drafted=6, num_accepted=0)
    at_once = PromptResult([1], "stop", verification_steps=0)
    result = AcceptanceResult([long, short, at_once])
    assert result.acceptance_length == pytest.approx(17 / 6)
    assert result.drafts_accepted_length == pytest.approx(1 + 8 / 6)
    assert result.mean_of_prompt_means == pytest.approx((3.0 + 1.0) / 2)


def test_a_drafter_that_never_hits_reads_just_above_one(load_target: Load) -> None:
    target = load_target("qwen3")
    text = [4, *greedy_generate(target, [4], 64).token_ids]
    script = Script(text, frozenset(range(99)))
    result = AcceptanceResult([speculative_generate(target, script, [4], 64)])
    assert result.acceptance_length == pytest.approx(64 / 63)
    assert result.drafts_accepted_length == 1.0


def test_prompt_lookup() -> None:
    drafter = PromptLookupDrafter(max_drafts=4, max_ngram=3)
    assert drafter.propose([1, 2, 3, 4, 5, 9, 2, 3], 4) == [4, 5, 9, 2]
    assert drafter.propose([1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]
    assert drafter.propose([6, 2, 3, 5, 1, 2, 3, 4, 1, 2, 3], 2) == [4, 1]
    assert drafter.propose([1, 2, 3], 4) == []
    assert drafter.propose([1], 4) == []
    with pytest.raises(ValueError, match="at least 1"):
        PromptLookupDrafter(0)
