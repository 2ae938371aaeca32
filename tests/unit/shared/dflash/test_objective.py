"""The loss: chunks, weights, packed documents, and what never exists in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shared.dflash.batch import DrafterBatch, DrafterSample, collate, collate_packed
from shared.dflash.cross_entropy import dpace_factors, weighted_cross_entropy
from shared.dflash.metrics import LossTerms
from shared.dflash.model import DFlashDraftModel
from shared.dflash.objective import (
    Objective,
    default_gamma,
    draft_hidden,
    slot_labels,
    training_terms,
)
from shared.dflash.target_head import TargetHead

DRAW = {"num_anchors": 5, "run_seed": 1, "epoch": 0}


@pytest.fixture
def head() -> TargetHead:
    generator = torch.Generator().manual_seed(5)
    return TargetHead(
        torch.randn(96, 32, generator=generator), torch.randn(96, 32, generator=generator) * 0.3
    )


def plain_loss(
    hidden: Tensor, lm_head: Tensor, labels: Tensor, weights: Tensor, alpha: float | None
) -> Tensor:
    """The formula with all logits at once and autograd through everything."""
    losses = torch.nn.functional.cross_entropy(
        (hidden @ lm_head.T).float().flatten(0, 1), labels.flatten(), reduction="none"
    ).view(labels.shape)
    valid = weights > 0
    if alpha is not None:
        chance = torch.exp(-losses)
        factors = torch.zeros_like(weights)
        for block in range(weights.shape[0]):
            product, products = 1.0, []
            for slot in range(weights.shape[1]):
                if valid[block, slot]:
                    product = product * ((1 - alpha) * chance[block, slot].item() + alpha)
                products.append(product if valid[block, slot] else 0.0)
            for slot in range(weights.shape[1]):
                factors[block, slot] = sum(products[slot:])
        weights = weights * factors
    return (weights * losses).sum()


@given(st.integers(0, 10**6), st.integers(1, 7), st.sampled_from([None, 0.5, 0.2]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_chunked_loss_is_the_plain_loss(
    seed: int, chunk_blocks: int, alpha: float | None, sparse: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(6, 4, 8, generator=generator)
    lm_head = torch.randn(20, 8, generator=generator)
    labels = torch.randint(0, 20, (6, 4), generator=generator)
    weights = torch.rand(6, 4, generator=generator)
    weights[torch.rand(6, 4, generator=generator) < (0.8 if sparse else 0.2)] = 0
    ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    total, slots = weighted_cross_entropy(
        ours, lm_head, labels, weights, dpace_alpha=alpha, chunk_logits=chunk_blocks * 4 * 20
    )
    wanted = plain_loss(theirs, lm_head, labels, weights, alpha)
    (total * 0.37).backward()
    (wanted * 0.37).backward()
    torch.testing.assert_close(total, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)
    hits = (hidden @ lm_head.T).argmax(-1) == labels
    assert torch.equal(slots.correct, hits & (weights > 0))


@pytest.mark.parametrize("kind", ["decay", "dpace"])
def test_chunks_do_not_change_a_training_step(
    kind: str,
    head: TargetHead,
    make_drafter: Callable[..., DFlashDraftModel],
    make_sample: Callable[..., DrafterSample],
) -> None:
    model = make_drafter()
    batch = collate([make_sample(1, 20), make_sample(2, 31)], **DRAW)
    results = []
    for chunk_logits in (1, 3 * 4 * 96, 1 << 27):
        model.zero_grad()
        terms = training_terms(model, head, batch, Objective(kind), chunk_logits=chunk_logits)
        terms.loss_sum.backward()
        results.append((terms.to_vector(), [p.grad.clone() for p in model.parameters()]))
    for vector, gradients in results[1:]:
        torch.testing.assert_close(vector, results[0][0], atol=1e-4, rtol=1e-6)
        torch.testing.assert_close(gradients, results[0][1], atol=1e-5, rtol=1e-5)


class LargestTensor(TorchDispatchMode):
    """Notes the most elements any tensor has that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.numel())
        return out


def test_logits_of_all_blocks_never_exist() -> None:
    blocks, size, vocabulary = 40, 4, 5000
    hidden = torch.randn(blocks, size, 8, requires_grad=True)
    lm_head = torch.randn(vocabulary, 8)
    labels = torch.randint(0, vocabulary, (blocks, size))
    chunk = 4 * size * vocabulary
    with LargestTensor() as seen:
        total, _ = weighted_cross_entropy(
            hidden, lm_head, labels, torch.ones(blocks, size), chunk_logits=chunk
        )
        total.backward()
    assert vocabulary < seen.largest <= chunk < blocks * size * vocabulary


def test_slots_without_weight_skip_the_lm_head() -> None:
    vocabulary = 5000
    weights = torch.zeros(40, 4)
    weights[7, 2] = weights[30, 1] = 1.0
    with LargestTensor() as seen:
        weighted_cross_entropy(
            torch.randn(40, 4, 8, requires_grad=True),
            torch.randn(vocabulary, 8),
            torch.zeros(40, 4, dtype=torch.int64),
            weights,
        )
    assert seen.largest <= vocabulary * 8


def test_micro_batches_add_up_to_the_whole_batch(
    head: TargetHead,
    make_drafter: Callable[..., DFlashDraftModel],
    make_sample: Callable[..., DrafterSample],
) -> None:
    """Sums over parts, divided once, are the step of the whole; means of means would not be."""
    model = make_drafter()
    samples = [make_sample(1, 12), make_sample(2, 40), make_sample(3, 9)]

    def step(parts: list[list[DrafterSample]]) -> tuple[float, list[Tensor]]:
        model.zero_grad()
        total: LossTerms | None = None
        for part in parts:
            terms = training_terms(model, head, collate(part, **DRAW))
            terms.loss_sum.backward()
            terms = terms.detach()
            total = terms if total is None else total + terms
        assert total is not None
        return total.loss, [p.grad / total.weight_sum for p in model.parameters()]

    whole, parts = step([samples]), step([[one] for one in samples])
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    torch.testing.assert_close(parts[1], whole[1], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", ["decay", "dpace"])
def test_packed_documents_are_independent(
    kind: str,
    head: TargetHead,
    make_drafter: Callable[..., DFlashDraftModel],
    make_sample: Callable[..., DrafterSample],
) -> None:
    """Terms and gradients of a packed row are the sums of each document's own."""
    model = make_drafter(
        layer_types=("sliding_attention", "full_attention"), sliding_window=6, block_size=8
    )
    first, second, changed = make_sample(1, 17), make_sample(2, 23), make_sample(9, 23)

    def terms_of(batch: DrafterBatch) -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        terms = training_terms(model, head, batch, Objective(kind))
        terms.loss_sum.backward()
        return terms.to_vector(), [p.grad.double() for p in model.parameters()]

    def alone(sample: DrafterSample) -> tuple[Tensor, list[Tensor]]:
        return terms_of(collate([sample], **DRAW))

    for other in (second, changed):
        packed, gradients = terms_of(collate_packed([[first, other]], **DRAW))
        (vector_a, gradients_a), (vector_b, gradients_b) = alone(first), alone(other)
        torch.testing.assert_close(packed, vector_a + vector_b, atol=1e-4, rtol=1e-6)
        added = [a + b for a, b in zip(gradients_a, gradients_b, strict=True)]
        torch.testing.assert_close(gradients, added, atol=1e-5, rtol=1e-4)


def test_changing_one_document_leaves_the_other_unchanged(
    head: TargetHead,
    make_drafter: Callable[..., DFlashDraftModel],
    make_sample: Callable[..., DrafterSample],
) -> None:
    """Bit for bit: hidden states of the first document's blocks, and its gradient on its inputs."""
    model = make_drafter()
    first = make_sample(1, 17)
    seen = []
    for other in (make_sample(2, 23), make_sample(9, 23)):
        batch = collate_packed([[first, other]], **DRAW)
        states = batch.target_hidden_states.clone().requires_grad_()
        batch = DrafterBatch(
            batch.input_ids, batch.loss_mask, states, batch.anchors, batch.kept, batch.document_ids
        )
        layout = batch.layout(model.config.block_size)
        hidden = draft_hidden(model, head, batch, layout)
        training_terms(model, head, batch).loss_sum.backward()
        own = batch.anchors[0] < 17
        assert own.sum() == 5 and (~own).sum() == 5
        seen.append((hidden[0][own].detach(), states.grad[0, :17], states.grad[0, 17:]))
    assert torch.equal(seen[0][0], seen[1][0])
    assert torch.equal(seen[0][1], seen[1][1]) and seen[0][1].any()
    assert not torch.equal(seen[0][2], seen[1][2])


def test_which_slots_count(make_sample: Callable[..., DrafterSample]) -> None:
    """Not the anchor, not past the row, the document or the loss mask, not in unused blocks."""
    batch = DrafterBatch(
        input_ids=torch.arange(10)[None],
        loss_mask=torch.tensor([[0, 1, 1, 1, 0, 1, 1, 1, 1, 1]]).bool(),
        target_hidden_states=torch.zeros(1, 10, 1),
        anchors=torch.tensor([[2, 6, 8, 1]]),
        kept=torch.tensor([[True, True, True, False]]),
        document_ids=torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0, 1, 1]]),
    )
    labels, valid = slot_labels(batch, batch.layout(4))
    assert valid[0].tolist() == [
        [False, True, False, True],
        [False, True, False, False],
        [False, True, False, False],
        [False, False, False, False],
    ]
    assert labels[0, 0].tolist() == [2, 3, 4, 5] and labels[0, 1, :2].tolist() == [6, 7]


def test_decay_weights(
    head: TargetHead,
    make_drafter: Callable[..., DFlashDraftModel],
    make_sample: Callable[..., DrafterSample],
) -> None:
    assert [default_gamma(size) for size in (16, 10, 8)] == [7, 5, 4]
    batch = collate([make_sample(1, 40)], **{**DRAW, "num_anchors": 1})
    with torch.no_grad():
        terms = training_terms(make_drafter(), head, batch, Objective(gamma=2.0))
    assert terms.weight_sum.item() == pytest.approx(1 + math.exp(-0.5) + math.exp(-1.0))


def test_dpace_factors_by_hand() -> None:
    """q = 0.8, skipped, 0.4 with alpha 0.5: s = 0.9, 1, 0.7; P = 0.9, -, 0.63."""
    factors = dpace_factors(
        torch.tensor([[0.0, 0.8, 0.1, 0.4]]), torch.tensor([[False, True, False, True]]), 0.5
    )
    torch.testing.assert_close(factors, torch.tensor([[0.0, 1.53, 0.0, 0.63]]))


def test_lm_head_and_embedding_stay_frozen(
    make_drafter: Callable[..., DFlashDraftModel], make_sample: Callable[..., DrafterSample]
) -> None:
    matrix = torch.randn(96, 32, requires_grad=True)
    model = make_drafter()
    terms = training_terms(
        model, TargetHead(matrix.detach(), matrix), collate([make_sample(1, 12)], **DRAW)
    )
    terms.loss_sum.backward()
    assert matrix.grad is None
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("bad", [{"kind": "mse"}, {"gamma": 0.0}, {"alpha": 1.5}])
def test_objective_refuses(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Objective(**bad)
