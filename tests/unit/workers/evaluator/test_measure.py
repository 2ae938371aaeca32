"""The whole measurement on the tiny target, and the prompts it runs on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.checkpoint_folders import find_checkpoint, marker_bytes
from services.data.prompts import PromptRow
from services.data.raw import Place
from services.data.source import open_split
from services.data.tokenizer import TargetTokenizer
from services.target_models.drafter_shape import drafter_config
from services.target_models.untrained import untrained_drafter
from shared.config import RunConfig
from shared.config.loading import resolve_config
from shared.dflash.export import save_drafter
from shared.dflash.model import DFlashDraftModel
from shared.dflash.target import TargetModel
from shared.errors import DataError, DrafterError, IntegrityError, NotFoundError
from shared.layout import RunFolder
from shared.tiny_target import model_folder
from tests.helpers.damage import flip_bit
from workers.evaluator import offline
from workers.evaluator.measure import EvaluationSettings, measure
from workers.evaluator.prompts import EvaluationPrompt, held_out_rows, render
from workers.evaluator.worker import evaluate_checkpoint

NEW_TOKENS = 24


def config_of(**overrides: object) -> RunConfig:
    base = {
        "target.path": "builtin:tiny",
        "target.dtype": "float32",
        "data.prompts": "builtin:tiny",
        "data.num_prompts": 60,
        "data.held_out_share": 0.2,
        "generator.thinking": True,
        "drafter.num_hidden_layers": 2,
        "drafter.block_size": 4,
        "trainer.dtype": "float32",
        "evaluate.max_new_tokens": NEW_TOKENS,
    }
    return resolve_config(overrides={**base, **overrides})


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return config_of()


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel.load(model_folder())


@pytest.fixture(scope="module")
def tokenizer() -> TargetTokenizer:
    return TargetTokenizer.load(model_folder())


@pytest.fixture(scope="module")
def drafter(config: RunConfig) -> DFlashDraftModel:
    return untrained_drafter(drafter_config(config, model_folder()), seed=3).eval()


@pytest.fixture(scope="module")
def prompts(config: RunConfig, tokenizer: TargetTokenizer) -> list[EvaluationPrompt]:
    return render(held_out_rows(config)[:6], tokenizer, thinking=True, room=1024)


def test_the_figures_are_those_of_the_decoding(target, tokenizer, drafter, prompts):
    progress: list[tuple[int, int]] = []
    result = measure(
        target,
        drafter,
        prompts,
        EvaluationSettings(NEW_TOKENS, tokenizer.eos_ids),
        untrained=drafter,
        decode=tokenizer.decode,
        on_progress=lambda done, total: progress.append((done, total)),
    )
    assert result["equal_to_greedy"] is True and result["num_unequal"] == 0
    pooled = result["generated_tokens"] / result["verification_steps"]
    assert result["acceptance_length"] == pytest.approx(pooled, abs=1e-3)
    assert result["num_prompts"] == 6 and result["baselines_num_prompts"] == 4
    # The same untrained drafter on the same prompts gives the same figure.
    assert result["baselines"]["untrained"] == result["acceptance_length_on_baseline_prompts"]
    assert result["baselines"]["prompt_lookup"] >= 1.0
    assert progress == [(done, 14) for done in range(1, 15)]
    json.dumps(result, allow_nan=False)


def test_the_target_s_score_counts_right_answers(target, tokenizer, drafter, prompts):
    settings = EvaluationSettings(320, tokenizer.eos_ids, baselines=False)
    result = measure(target, drafter, prompts[:3], settings, decode=tokenizer.decode)
    assert result["target_score"]["total"] == 3
    assert result["target_score"]["correct"] >= 2
    assert result["baselines"] == {}


def test_an_answer_that_differs_from_greedy_is_counted(
    target, tokenizer, drafter, prompts, monkeypatch: pytest.MonkeyPatch
):
    from workers.evaluator import measure as module

    decode = module.speculative_generate

    def wrong(*args):
        result = decode(*args)
        result.token_ids[-1] += 1
        return result

    monkeypatch.setattr(module, "speculative_generate", wrong)
    settings = EvaluationSettings(8, tokenizer.eos_ids, baselines=False)
    result = measure(target, drafter, prompts[:2], settings)
    assert result["equal_to_greedy"] is False and result["num_unequal"] == 2


def test_a_drafter_of_another_target_is_refused(target, tokenizer, prompts, config):
    fields = {**json.loads((model_folder() / "config.json").read_text()), "hidden_size": 96}
    from shared.dflash.config import DrafterConfig

    shape = DrafterConfig.for_target(fields, num_hidden_layers=2, block_size=4, mask_token_id=3)
    with pytest.raises(DrafterError, match="hidden_size is 96"):
        measure(
            target, untrained_drafter(shape, 0), prompts, EvaluationSettings(4, tokenizer.eos_ids)
        )


def test_evaluation_prompts_never_train(config: RunConfig):
    held_out = {row.sha256 for row in held_out_rows(config)}
    assert len(held_out) == 12
    with open_split(config) as split:
        assert held_out.isdisjoint(row.sha256 for row in split.training)


def test_a_run_without_held_out_prompts_says_which_settings_to_change():
    with pytest.raises(DataError, match=r"data\.held_out_share 0\.0"):
        held_out_rows(config_of(**{"data.held_out_share": 0.0}))


def test_prompts_that_fill_the_context_are_left_out(tokenizer: TargetTokenizer):
    long = {"role": "user", "content": "one " * 300}
    short = {"role": "user", "content": "What is 2 + 3?"}
    rows = [
        PromptRow(i, Place("p", "line", i), str(i), 0, [m]) for i, m in enumerate((long, short))
    ]
    assert len(render(rows, tokenizer, thinking=True, room=200)) == 1
    with pytest.raises(DataError, match="context of 200"):
        render(rows[:1], tokenizer, thinking=True, room=200)


def test_a_checkpoint_is_evaluated_as_the_job_does(tmp_path: Path, drafter: DFlashDraftModel):
    folder = RunFolder(tmp_path)
    checkpoint = folder.checkpoint(30)
    save_drafter(checkpoint.drafter, drafter)
    with pytest.raises(NotFoundError, match="no complete checkpoint"):
        find_checkpoint(folder, None)
    checkpoint.complete_marker.write_bytes(marker_bytes(checkpoint, 30))
    with pytest.raises(NotFoundError, match=r"step_00000020 is not there.*of step 30"):
        find_checkpoint(folder, 20)
    found = find_checkpoint(folder, None)
    assert found.step == 30 and found == find_checkpoint(folder, 30)
    config = config_of(**{"evaluate.baselines": False, "evaluate.max_new_tokens": 8})
    result = evaluate_checkpoint(config, found, 2, "cpu", lambda done, total: None)
    assert (result["checkpoint_step"], result["num_prompts"]) == (30, 2)
    flip_bit(checkpoint.drafter / "model.safetensors")
    with pytest.raises(IntegrityError, match=r"drafter/model\.safetensors is damaged"):
        evaluate_checkpoint(config, found, 2, "cpu", lambda done, total: None)


def test_offline_prints_the_result_and_names_what_is_wrong(
    tmp_path: Path, drafter: DFlashDraftModel, capsys: pytest.CaptureFixture[str]
):
    save_drafter(tmp_path / "drafter", drafter)
    arguments = ["--target", "builtin:tiny", "--prompts", "builtin:tiny", "--num-prompts", "2"]
    arguments += ["--max-new-tokens", "8", "--no-baselines", "--device", "cpu"]
    assert offline.main([*arguments, "--drafter", str(tmp_path / "drafter"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_prompts"] == 2
    assert offline.main([*arguments, "--drafter", str(tmp_path / "drafter")]) == 0
    assert "output equal to greedy" in capsys.readouterr().out
    assert offline.main([*arguments, "--drafter", str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err
