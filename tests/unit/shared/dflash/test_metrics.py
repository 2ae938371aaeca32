"""Accuracy and simulated acceptance length, by hand and over a held-out set."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from shared.dflash.batch import DrafterSample, collate
from shared.dflash.evaluation import evaluate
from shared.dflash.metrics import LossTerms, slot_statistics
from shared.dflash.model import DFlashDraftModel
from shared.dflash.target_head import TargetHead

ONE = torch.tensor(1.0)
RIGHT = torch.tensor(
    [
        [0, 1, 1, 0, 1],  # prefix 2
        [0, 0, 1, 1, 1],  # prefix 0: later hits do not count
        [0, 1, 1, 1, 1],  # prefix 1: slot 2 does not count and ends it
        [0, 1, 1, 1, 1],  # an unused block
    ]
).bool()
VALID = torch.tensor([[0, 1, 1, 1, 1], [0, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()


def test_by_hand() -> None:
    terms = slot_statistics(ONE, ONE, RIGHT, VALID)
    assert terms.num_weighted == 11 and terms.num_correct == 9
    assert terms.accuracy == pytest.approx(9 / 11)
    assert terms.accuracy_by_slot == pytest.approx([2 / 3, 1.0, 2 / 3, 1.0])
    assert terms.simulated_acceptance_length == pytest.approx(1 + (2 + 0 + 1) / 3)


def test_true_prefixes_are_not_a_product_of_marginals() -> None:
    right = torch.tensor([[0, 1, 0], [0, 0, 1]]).bool()
    terms = slot_statistics(ONE, ONE, right, torch.tensor([[0, 1, 1], [0, 1, 1]]).bool())
    assert terms.simulated_acceptance_length == 1.5  # the marginals would say 1 + 0.5 + 0.25


def test_sums_add_up_and_travel_as_a_vector() -> None:
    whole = slot_statistics(ONE * 2, ONE * 2, RIGHT, VALID)
    first, second = (slot_statistics(ONE, ONE, RIGHT[p], VALID[p]) for p in (slice(2), slice(2, 4)))
    assert torch.equal((first + second).to_vector(), whole.to_vector())
    back = LossTerms.from_vector(whole.to_vector())
    assert torch.equal(back.to_vector(), whole.to_vector())
    assert back.accuracy_by_slot == whole.accuracy_by_slot


def test_nothing_counted_is_nan_not_zero() -> None:
    terms = slot_statistics(ONE * 0, ONE * 0, RIGHT, torch.zeros_like(VALID))
    assert math.isnan(terms.accuracy) and math.isnan(terms.loss)
    assert math.isnan(terms.simulated_acceptance_length)


def test_held_out_set_with_fixed_anchors(
    make_drafter: Callable[..., DFlashDraftModel], make_sample: Callable[..., DrafterSample]
) -> None:
    torch.manual_seed(0)
    head = TargetHead(torch.randn(96, 32), torch.randn(96, 32))
    batches = [collate([make_sample(n, 20)], num_anchors=4, run_seed=0, epoch=0) for n in (1, 2, 3)]
    model = make_drafter()
    once, twice = evaluate(model, head, batches), evaluate(model, head, batches)
    assert torch.equal(once.to_vector(), twice.to_vector())
    assert once.num_blocks == 12 and not once.loss_sum.requires_grad
    assert 1.0 <= once.simulated_acceptance_length <= 4.0
    with pytest.raises(ValueError, match="held-out set is empty"):
        evaluate(model, head, [])
