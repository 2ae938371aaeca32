"""Schedule, master weights, clipping, and going on bit for bit."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from shared.dflash.batch import DrafterSample, collate
from shared.dflash.model import DFlashDraftModel
from shared.dflash.objective import training_terms
from shared.dflash.optimizer import DrafterOptimizer, learning_rate
from shared.dflash.target_head import TargetHead
from shared.errors import DrafterError


def test_schedule() -> None:
    rates = [learning_rate(step, 100, 6e-4, 0.04) for step in range(101)]
    assert rates[:4] == pytest.approx([1.5e-4, 3e-4, 4.5e-4, 6e-4])
    assert rates[4] == pytest.approx(6e-4)
    assert rates[52] == pytest.approx(3e-4)
    assert rates[100] == pytest.approx(0.0, abs=1e-12) and rates[99] > 0
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[4:]))
    assert learning_rate(0, 1, 1.0, 0.0) == 1.0
    for bad in ((0, 0.1), (10, 1.0)):
        with pytest.raises(ValueError, match="warmup_ratio"):
            learning_rate(0, bad[0], 1.0, bad[1])


def _problem(dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(6, 4, bias=False).to(dtype)


def _backward(model: nn.Linear, step: int) -> None:
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(step)).to(model.weight.dtype)
    model(inputs).square().sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("flat", [False, True])
def test_resumed_training_is_bit_for_bit_the_same(dtype: torch.dtype, flat: bool) -> None:
    model = _problem(dtype)
    optimizer = DrafterOptimizer(model)
    saved = None
    for step in range(12):
        if step == 5:
            state = optimizer.flat_state() if flat else optimizer.state_dict()
            saved = copy.deepcopy((model.state_dict(), state))
        _backward(model, step)
        optimizer.step(learning_rate(step, 12, 1e-2, 0.1), 8.0)
    assert saved is not None
    resumed = _problem(dtype)
    resumed.load_state_dict(saved[0])
    other = DrafterOptimizer(resumed)
    (other.load_flat_state if flat else other.load_state_dict)(saved[1])
    for step in range(5, 12):
        _backward(resumed, step)
        other.step(learning_rate(step, 12, 1e-2, 0.1), 8.0)
    assert torch.equal(resumed.weight, model.weight)
    for key, value in optimizer.flat_state().items():
        assert torch.equal(other.flat_state()[key], value), key


def test_float32_step_is_adamw_on_divided_and_clipped_gradients() -> None:
    ours, theirs = _problem(torch.float32), _problem(torch.float32)
    optimizer = DrafterOptimizer(ours, max_grad_norm=0.5)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(4):
        _backward(ours, step)
        norm = optimizer.step(1e-2, 3.0)
        reference.zero_grad()
        _backward(theirs, step)
        assert theirs.weight.grad is not None
        theirs.weight.grad /= 3.0
        assert norm == pytest.approx(theirs.weight.grad.norm().item(), rel=1e-5)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        reference.step()
    torch.testing.assert_close(ours.weight, theirs.weight, atol=1e-7, rtol=1e-6)
    assert ours.weight.grad is None


def test_masters_keep_updates_that_half_precision_would_lose() -> None:
    model = _problem(torch.bfloat16)
    start = model.weight.detach().float().clone()
    optimizer = DrafterOptimizer(model)
    for _ in range(300):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step(1e-5)
    moved = start - model.weight.detach().float()
    assert moved.mean().item() == pytest.approx(300 * 1e-5, rel=0.2)
    master = optimizer.state_dict()["masters"]["weight"]
    assert master.dtype == torch.float32
    assert torch.equal(master.bfloat16(), model.weight)


def test_non_finite_gradient_changes_nothing() -> None:
    model = _problem(torch.float32)
    optimizer = DrafterOptimizer(model)
    before = model.weight.detach().clone()
    model.weight.grad = torch.full_like(model.weight, float("nan"))
    assert not math.isfinite(optimizer.step(1.0))
    assert torch.equal(model.weight, before) and model.weight.grad is None
    assert optimizer.state_dict()["moments"] == {}


def test_state_of_another_drafter_or_dtype_is_refused() -> None:
    half, full = (
        DrafterOptimizer(_problem(torch.bfloat16)),
        DrafterOptimizer(_problem(torch.float32)),
    )
    with pytest.raises(DrafterError, match="another compute dtype"):
        full.load_state_dict(half.state_dict())
    with pytest.raises(DrafterError, match="another drafter"):
        full.load_state_dict({"moments": {"nothing.weight": {}}, "masters": {}})


def test_loss_falls_in_half_precision(
    make_drafter: Callable[..., DFlashDraftModel], make_sample: Callable[..., DrafterSample]
) -> None:
    torch.manual_seed(0)
    head = TargetHead(torch.randn(96, 32).bfloat16(), torch.randn(96, 32).bfloat16())
    model = make_drafter().bfloat16()
    optimizer = DrafterOptimizer(model)
    batch = collate([make_sample(n, 16) for n in (1, 2)], num_anchors=8, run_seed=0, epoch=0)
    batch = batch.to("cpu", torch.bfloat16)
    losses = []
    for _ in range(25):
        terms = training_terms(model, head, batch)
        terms.loss_sum.backward()
        optimizer.step(3e-3, terms.weight_sum)
        losses.append(terms.loss)
    assert losses[-1] < 0.6 * losses[0]
