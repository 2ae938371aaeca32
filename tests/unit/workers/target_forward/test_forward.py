"""Packing, and the forward pass of packed samples on the tiny target."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shared.dflash.target import TargetModel
from shared.errors import DataError, TargetModelError
from shared.tiny_target import model_folder
from workers.target_forward.forward import TargetForward
from workers.target_forward.packing import nonfinite_rows, pad_rows, strip_rows


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 4))
def test_padding_and_stripping_are_inverse(lengths: list[int], extra: int):
    packed = torch.arange(1, 1 + 2 * sum(lengths)).reshape(-1, 2)
    rows = pad_rows(packed, lengths, max(lengths) + extra)
    assert rows.shape == (len(lengths), max(lengths) + extra, 2)
    assert int((rows == 0).sum()) == 2 * (rows.shape[0] * rows.shape[1] - sum(lengths))
    assert torch.equal(strip_rows(rows, lengths), packed)


def test_lengths_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="add up to 5"):
        pad_rows(torch.ones(4), [2, 3], 8)
    with pytest.raises(ValueError, match="padded_length 3"):
        pad_rows(torch.ones(6), [4, 2], 3)


def test_samples_with_a_nonfinite_value_are_found():
    packed = torch.zeros(6, 2)
    packed[2, 1] = torch.inf
    packed[5, 0] = torch.nan
    assert nonfinite_rows(packed, [2, 2, 2]) == [1, 2]


@pytest.fixture(scope="module")
def forward() -> TargetForward:
    return TargetForward(model_folder(), [1, 5], dtype="float32", device="cpu")


def test_packed_states_are_those_of_each_sample_alone(forward: TargetForward):
    lengths = [7, 3, 11]
    input_ids = torch.randint(5, 300, (21,), generator=torch.Generator().manual_seed(0))
    result = forward.run(input_ids, lengths, padded_length=16)
    target = TargetModel.load(model_folder())
    alone = [
        target.hidden_states(ids[None], target_layer_ids=(1, 5))[0]
        for ids in input_ids.split(lengths)
    ]
    assert result.target_hidden_states.shape == (21, 2 * 192)
    assert result.nonfinite_rows == []
    torch.testing.assert_close(result.target_hidden_states, torch.cat(alone), rtol=1e-3, atol=1e-3)


def test_an_id_outside_the_vocabulary_is_an_error_of_the_data(forward: TargetForward):
    with pytest.raises(DataError, match="another tokenizer"):
        forward.run(torch.tensor([1, 100_000]), [2], 4)


def test_layers_above_the_target_s_are_refused():
    with pytest.raises(TargetModelError, match="layer 8"):
        TargetForward(model_folder(), [1, 8], dtype="float32", device="cpu")
