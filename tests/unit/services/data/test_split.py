import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.data.prompts import number_rows
from services.data.split import split_prompts
from shared.errors import DataError


def rows_of(contents):
    return list(number_rows((i + 1, {"prompt": text}) for i, text in enumerate(contents)))


@given(st.lists(st.integers(0, 40), min_size=3, max_size=80), st.floats(0, 0.6), st.integers(0, 9))
def test_training_and_held_out_share_no_content(numbers, share, at_most):
    rows = rows_of([f"question {n}" for n in numbers])
    distinct = len(set(numbers))
    if min(at_most, round(share * distinct)) == distinct:
        return
    split = split_prompts(rows, share=share, at_most=at_most)
    held = {row.sha256 for row in split.held_out}
    assert held.isdisjoint(row.sha256 for row in split.training)
    assert len(split.held_out) == len(held) == min(at_most, round(share * distinct))
    assert len(split.training) == sum(row.sha256 not in held for row in rows)
    assert [r.index for r in split.training] == sorted(r.index for r in split.training)


def test_the_choice_ignores_order_and_repeats():
    contents = [f"question {n}" for n in range(50)]
    held = {r.sha256 for r in split_prompts(rows_of(contents), share=0.2, at_most=64).held_out}
    shuffled = contents + contents[:20]
    random.Random(1).shuffle(shuffled)
    again = {r.sha256 for r in split_prompts(rows_of(shuffled), share=0.2, at_most=64).held_out}
    assert held == again and len(held) == 10


def test_a_grown_file_keeps_most_of_the_choice():
    contents = [f"question {n}" for n in range(400)]
    small = {r.sha256 for r in split_prompts(rows_of(contents), share=0.1, at_most=40).held_out}
    grown = [*contents, "one more", "and another"]
    large = {r.sha256 for r in split_prompts(rows_of(grown), share=0.1, at_most=40).held_out}
    assert len(small & large) >= 38


def test_nothing_left_to_train_is_an_error():
    with pytest.raises(DataError, match="hold out all 2 prompts"):
        split_prompts(rows_of(["a", "b"]), share=1.0, at_most=64)
