"""The shipped model: small, loadable, its template has a thinking mode, its answers are right."""

import json

import pytest
import torch

from shared.dflash.decoding import generate_group
from shared.dflash.layer_ids import default_target_layer_ids
from shared.dflash.target import TargetModel
from shared.tiny_target import make_problems, model_folder, score
from shared.tiny_target.evaluate import load_target
from shared.tiny_target.train import main as train


@pytest.fixture(scope="module")
def loaded():
    return load_target(model_folder())


def test_the_folder_is_small_and_names_its_making():
    sizes = [path.stat().st_size for path in model_folder().iterdir()]
    assert sum(sizes) <= 8 * 10**6
    training = json.loads((model_folder() / "TRAINING.json").read_text("utf-8"))
    assert training["options"]["seed"] == 0
    share = training["scores"]["thinking"]["all"]
    assert share >= 0.8
    assert f"| all | {share:.1%} |" in (model_folder() / "README.md").read_text("utf-8")


def test_drafters_of_two_and_three_layers_have_distinct_target_layers(loaded):
    model, _ = loaded
    for num_draft_layers in (2, 3):
        ids = default_target_layer_ids(model.config.num_hidden_layers, num_draft_layers)
        assert len(set(ids)) == num_draft_layers
        assert max(ids) <= model.config.num_hidden_layers - 2


def test_the_template_thinks_unless_told_otherwise(loaded):
    _, tokenizer = loaded
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    render = {"tokenize": False, "add_generation_prompt": True}
    thinking = tokenizer.apply_chat_template(messages, **render)
    without = tokenizer.apply_chat_template(messages, enable_thinking=False, **render)
    assert "What is 2 + 3?" in thinking
    assert "</think>" not in thinking
    assert without.startswith(thinking) and without.rstrip().endswith("</think>")


def test_answers_are_right_most_of_the_time(loaded):
    _, tokenizer = loaded
    problems = make_problems(99, 24)
    prompts = [
        tokenizer.encode(
            tokenizer.apply_chat_template(
                list(problem.messages), tokenize=False, add_generation_prompt=True
            )
        )
        for problem in problems
    ]
    target = TargetModel.load(model_folder(), torch.float32, "cpu")
    answers = generate_group(target, prompts, 256, 0.0, 1.0, [0] * len(prompts))
    right = sum(
        score(problem, tokenizer.decode(answer.token_ids, skip_special_tokens=True))
        for problem, answer in zip(problems, answers, strict=True)
    )
    assert right >= 17


def test_the_script_makes_a_folder_that_loads(tmp_path, monkeypatch):
    monkeypatch.setattr("shared.tiny_target.evaluate.MAX_NEW_TOKENS", 4)
    folder = tmp_path / "model"
    options = {"--out": str(folder), "--steps": "2", "--batch-size": "4", "--device": "cpu"}
    assert (
        train([part for pair in options.items() for part in pair] + ["--num-score-problems", "4"])
        == 0
    )
    model, tokenizer = load_target(folder)
    assert model.config.vocab_size >= len(tokenizer)
    assert (folder / "README.md").exists()
