import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.data.source import count_prompts, held_out_prompts, open_split
from shared.errors import DataError
from tests.helpers.mesh_contexts import tiny_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("split")


def config_of(folder, contents, *, share, at_most):
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in contents))
    return tiny_config(
        {
            "data.prompts": str(path),
            "data.num_prompts": None,
            "data.held_out_share": share,
            "data.max_held_out": at_most,
        }
    )


def held_out(folder, contents, *, share, at_most):
    with open_split(config_of(folder, contents, share=share, at_most=at_most)) as split:
        return {row.sha256 for row in split.held_out}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=3, max_size=80), st.floats(0, 0.6), st.integers(0, 9))
def test_training_and_held_out_share_no_content(folder, numbers, share, at_most):
    distinct = len(set(numbers))
    if min(at_most, round(share * distinct)) == distinct:
        return
    config = config_of(folder, [f"question {n}" for n in numbers], share=share, at_most=at_most)
    with open_split(config) as split:
        held_rows, training = list(split.held_out), list(split.training)
    held = {row.sha256 for row in held_rows}
    assert held.isdisjoint(row.sha256 for row in training)
    assert len(held_rows) == len(held) == min(at_most, round(share * distinct))
    assert all(row.occurrence == 0 for row in held_rows)
    indices = [row.index for row in training]
    assert indices == sorted(indices)
    repeats = sum(count - 1 for count in map(numbers.count, set(numbers)))
    assert len(training) + len(held_rows) <= len(numbers) <= len(training) + len(held) + repeats
    # The three ways to come by the split agree.
    assert held_out_prompts(config) == held_rows
    counts = count_prompts(config)
    assert (counts.usable, counts.training) == (len(numbers), len(training))
    assert (counts.held_out, counts.bad_rows) == (len(held), 0)


def test_the_choice_ignores_order_and_repeats(folder):
    contents = [f"question {n}" for n in range(50)]
    held = held_out(folder, contents, share=0.2, at_most=64)
    shuffled = contents + contents[:20]
    random.Random(1).shuffle(shuffled)
    assert held_out(folder, shuffled, share=0.2, at_most=64) == held and len(held) == 10


def test_a_grown_file_keeps_most_of_the_choice(folder):
    contents = [f"question {n}" for n in range(400)]
    small = held_out(folder, contents, share=0.1, at_most=40)
    large = held_out(folder, [*contents, "one more", "and another"], share=0.1, at_most=40)
    assert len(small & large) >= 38


def test_nothing_left_to_train_is_an_error(folder):
    config = config_of(folder, ["a", "b"], share=1.0, at_most=64)
    for find in (count_prompts, held_out_prompts):
        with pytest.raises(DataError, match="hold out all 2 prompts"):
            find(config)
    with pytest.raises(DataError, match="hold out all 2 prompts"), open_split(config):
        pass
