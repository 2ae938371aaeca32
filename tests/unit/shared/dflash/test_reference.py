"""Our drafter against recorded results of an independent implementation, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from shared.dflash.batch import DrafterBatch
from shared.dflash.cross_entropy import CHUNK_LOGITS
from shared.dflash.export import load_drafter
from shared.dflash.mask import dense_mask
from shared.dflash.model import DFlashDraftModel
from shared.dflash.objective import Objective, draft_hidden, training_terms
from shared.dflash.target_head import TargetHead

FIXTURES = Path(__file__).parents[3] / "fixtures" / "dflash"
OBJECTIVES = {
    "gamma7": Objective(gamma=7.0),
    "gamma4": Objective(gamma=4.0),
    "nodecay": Objective(gamma=float("inf")),
    "dpace": Objective("dpace"),
}


@dataclass
class Case:
    model: DFlashDraftModel
    head: TargetHead
    batch: DrafterBatch
    expected: dict[str, Tensor]


@pytest.fixture(params=["plain", "gaps", "sliding"])
def case(request: pytest.FixtureRequest) -> Case:
    folder = FIXTURES / request.param
    inputs = load_file(folder / "inputs.safetensors")
    batch = DrafterBatch(
        inputs["input_ids"],
        inputs["loss_mask"] > 0,
        inputs["hidden_states"],
        inputs["anchors"],
        inputs["keep"] > 0,
    )
    head = TargetHead(inputs["embed"], inputs["lm_head"])
    expected = load_file(folder / "expected.safetensors")
    return Case(load_drafter(folder / "drafter"), head, batch, expected)


def test_masks_are_equal(case: Case) -> None:
    config = case.model.config
    layout = case.batch.layout(config.block_size)
    assert torch.equal(dense_mask(layout), case.expected["mask.full"].bool())
    if "mask.sliding" in case.expected:
        sliding = dense_mask(layout, config.sliding_window)
        assert torch.equal(sliding, case.expected["mask.sliding"].bool())


def test_hidden_states_and_logits_of_used_blocks(case: Case) -> None:
    layout = case.batch.layout(case.model.config.block_size)
    with torch.no_grad():
        hidden = draft_hidden(case.model, case.head, case.batch, layout)
        logits = case.head.logits(hidden)
    # An unused block sees nothing, so what attention makes of it is a convention of each library.
    used = case.batch.kept
    wanted = case.expected["draft_hidden"].view_as(hidden)
    torch.testing.assert_close(hidden[used], wanted[used], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[used], case.expected["logits"][used], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk_logits", [1, CHUNK_LOGITS], ids=["one block", "all blocks"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_and_gradients(case: Case, name: str, chunk_logits: int) -> None:
    terms = training_terms(
        case.model, case.head, case.batch, OBJECTIVES[name], chunk_logits=chunk_logits
    )
    loss = terms.loss_sum / terms.weight_sum
    torch.testing.assert_close(loss[None], case.expected[f"loss.{name}"], atol=1e-5, rtol=1e-6)
    if f"grad.{name}.fc.weight" in case.expected:
        loss.backward()
        for parameter_name, parameter in case.model.named_parameters():
            wanted = case.expected[f"grad.{name}.{parameter_name}"]
            torch.testing.assert_close(
                parameter.grad,
                wanted,
                atol=1e-4,
                rtol=0,
                msg=lambda m, n=parameter_name: f"{n}: {m}",
            )


def test_accuracy(case: Case) -> None:
    with torch.no_grad():
        terms = training_terms(case.model, case.head, case.batch)
    assert terms.accuracy == pytest.approx(case.expected["acc"].item(), abs=1e-6)
