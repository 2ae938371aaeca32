"""Anchors: which positions qualify, and that a sample always draws the same ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.dflash.anchors import anchor_candidates, pad_anchors, sample_anchors
from shared.dflash.batch import DrafterSample, collate, collate_packed
from shared.errors import DataError

DRAW = {"num_anchors": 4, "run_seed": 7, "epoch": 2}


@given(st.lists(st.booleans(), min_size=2, max_size=40))
def test_candidates_have_two_supervised_tokens(mask: list[bool]) -> None:
    wanted = [p for p in range(len(mask) - 1) if mask[p] and mask[p + 1]]
    assert anchor_candidates(torch.tensor(mask)).tolist() == wanted


@given(st.integers(2, 60), st.integers(1, 70), st.integers(0, 2**40))
@settings(max_examples=50)
def test_draw_is_sorted_distinct_and_within_candidates(length: int, count: int, seed: int) -> None:
    mask = torch.ones(length, dtype=torch.bool)
    drawn = sample_anchors(mask, count, seed, 0, "sample").tolist()
    assert drawn == sorted(set(drawn))
    assert len(drawn) == min(count, length - 1)
    assert drawn[0] >= 0 and drawn[-1] < length - 1


def test_draw_depends_on_run_seed_epoch_and_sample_only() -> None:
    mask = torch.ones(500, dtype=torch.bool)
    first = sample_anchors(mask, 20, 1, 0, 5)
    torch.manual_seed(99)
    assert torch.equal(sample_anchors(mask, 20, 1, 0, 5), first)
    for other in ((2, 0, 5), (1, 1, 5), (1, 0, 6)):
        assert not torch.equal(sample_anchors(mask, 20, *other), first)


def test_draw_is_uniform_over_candidates() -> None:
    mask = torch.ones(11, dtype=torch.bool)
    counts = torch.zeros(10)
    for sample in range(3000):
        counts[sample_anchors(mask, 3, 0, 0, sample)] += 1
    assert (counts / 3000 - 0.3).abs().max() < 0.04


def test_recorded_draw() -> None:
    """A restart on another machine must repeat these numbers."""
    mask = torch.ones(100, dtype=torch.bool)
    assert sample_anchors(mask, 6, 7, 3, 42).tolist() == [5, 34, 35, 36, 51, 61]


def test_sample_without_candidates_is_an_error_of_the_data() -> None:
    mask = torch.tensor([True, False, True, False])
    with pytest.raises(DataError, match="sample 31 has no two consecutive supervised tokens"):
        sample_anchors(mask, 4, 0, 0, 31)


def test_padding_and_packing_do_not_change_the_draw(
    make_sample: Callable[..., DrafterSample],
) -> None:
    samples = [make_sample(1, 20), make_sample(2, 33), make_sample(3, 9)]
    alone = [sample_anchors(s.loss_mask, 4, 7, 2, s.sample_id) for s in samples]
    batch = collate(samples, **DRAW, num_blocks_multiple=8, length_multiple=16)
    assert batch.anchors.shape == (3, 8) and batch.input_ids.shape == (3, 48)
    for row, drawn in enumerate(alone):
        assert torch.equal(batch.anchors[row][batch.kept[row]], drawn)
    packed = collate_packed([samples], **DRAW)
    shifted = torch.cat([alone[0], alone[1] + 20, alone[2] + 53])
    assert torch.equal(packed.anchors[packed.kept], shifted)
    assert packed.num_sequences == batch.num_sequences == 3


def test_collated_rows_hold_the_samples(make_sample: Callable[..., DrafterSample]) -> None:
    samples = [make_sample(1, 6), make_sample(2, 8)]
    batch = collate(samples, **DRAW)
    assert batch.document_ids is None
    assert torch.equal(batch.input_ids[0, :6], samples[0].input_ids)
    assert not batch.loss_mask[0, 6:].any()
    assert not batch.target_hidden_states[0, 6:].any()
    assert torch.equal(batch.target_hidden_states[1], samples[1].target_hidden_states)


def test_pad_anchors() -> None:
    anchors, kept = pad_anchors([torch.tensor([2, 5, 6]), torch.tensor([1])], multiple=2)
    assert anchors.tolist() == [[2, 5, 6, 0], [1, 0, 0, 0]]
    assert kept.tolist() == [[True, True, True, False], [True, False, False, False]]
