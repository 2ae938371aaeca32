"""Presets load, every wrong field is named at once, contradictions say what to do."""

from collections.abc import Mapping
from typing import Any

import pytest

from shared.config import RunConfig, parse_config, preset_names, resolve_config
from shared.config.loading import config_sha256
from shared.errors import ConfigError

MINIMAL: Mapping[str, Any] = {"target": {"path": "t"}, "data": {"prompts": "p.jsonl"}}


def problems(tree: Mapping[str, Any], **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_config(tree, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_valid(name: str) -> None:
    config = resolve_config(preset=name)
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config


def test_all_wrong_fields_are_reported_together_with_suggestions() -> None:
    text = problems(
        {**MINIMAL, "trainer": {"lrr": 1}, "generater": {}},
        overrides={"train.num_epochs": 0, "drafter.block_sizes": 8},
    )
    for part in (
        "trainer.lrr",
        "'lr'",
        "generater",
        "'generator'",
        "train.num_epochs",
        "block_size",
    ):
        assert part in text


@pytest.mark.parametrize("path", ["trainer.num_epochs", "num_epochs"])
def test_a_key_that_another_table_has_is_named_with_that_table(path: str) -> None:
    assert "did you mean 'train.num_epochs'" in problems(MINIMAL, overrides={path: 1})


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"stages": ["generate"]}, "add it"),
        ({"stages": ["train"]}, "data.dataset"),
        ({"stages": ["generate", "tokenise", "evaluate"]}, "needs a checkpoint"),
        ({"data": {"prompts": "p", "dataset": "d"}}, "remove one of the two"),
        ({"data": {}}, "data.prompts is not set"),
        ({"supervision": {"lease_s": 1.0}}, "raise the lease"),
        ({"generator": {"engine": "sglang"}}, "generator.sglang.urls"),
        ({"generator": {"engine": "openai"}}, "generator.openai.urls"),
        ({"generator": {"openai": {"urls": ["host:8000"]}}}, "not an address"),
        ({"generator": {"openai": {"extra_body": {"seed": 1}}}}, "extra_body must not set seed"),
        ({"generator": {"sglang": {"speculative": "eagle"}}}, "generator.sglang.draft_model"),
        ({"generator": {"sglang": {"breaker_backoff_s": 99.0}}}, "raise the former"),
        ({"target_forward": {"num_workers": 3, "devices": ["a", "b"]}}, "one for each worker"),
        ({"drafter": {"sliding_window": 8}}, "layer_types"),
        ({"drafter": {"num_hidden_layers": 2, "layer_types": ["full_attention"]}}, "one for each"),
        ({"name": "../etc"}, "name"),
        ({"trainer": {"lr": float("nan")}}, "trainer.lr"),
    ],
)
def test_contradictions_name_the_fields_and_the_remedy(tree: dict[str, Any], expected: str) -> None:
    assert expected in problems({**MINIMAL, **tree})


def test_overrides_reach_into_tables_and_refuse_to_enter_values() -> None:
    config = resolve_config(MINIMAL, overrides={"trainer.lr": 1e-3, "name": "x"})
    assert (config.trainer.lr, config.name) == (1e-3, "x")
    assert "not a table" in problems(MINIMAL, overrides={"target.path.first": 1})


def test_unknown_preset_and_broken_toml() -> None:
    assert "'demo'" in problems({}, preset="demoo")
    with pytest.raises(ConfigError, match=r"mine\.toml is not valid TOML.*line 1"):
        parse_config("a = = 1", source="mine.toml")


def test_the_digest_follows_the_content() -> None:
    one, two = resolve_config(MINIMAL), resolve_config(MINIMAL, overrides={"seed": 1})
    assert config_sha256(one) == config_sha256(resolve_config(MINIMAL))
    assert config_sha256(one) != config_sha256(two)
