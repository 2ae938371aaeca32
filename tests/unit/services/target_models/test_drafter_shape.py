"""The drafter's shape and mask token, as a configuration and a target folder fix them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from services.target_models.drafter_shape import drafter_config
from services.target_models.mask_token import mask_token_id_of
from shared.config.loading import resolve_config
from shared.errors import DrafterError, TargetModelError
from shared.tiny_target import model_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tiny target without its weights, which nothing here reads."""
    target = tmp_path / "target"
    shutil.copytree(model_folder(), target, ignore=shutil.ignore_patterns("*.safetensors"))
    return target


def config_of(folder: Path, **overrides: object):
    base = {"target.path": str(folder), "data.prompts": "builtin:tiny"}
    return resolve_config(overrides={**base, "drafter.num_hidden_layers": 2, **overrides})


def token_id(folder: Path, text: str) -> int:
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return next(token["id"] for token in added if token["content"] == text)


def without_mask_token(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    fields = json.loads(path.read_text())
    del fields["mask_token"]
    path.write_text(json.dumps(fields))


def test_the_tokenizer_s_mask_token_is_taken(folder: Path):
    assert mask_token_id_of(folder) == token_id(folder, "<|mask|>")


def test_an_explicit_id_wins(folder: Path):
    assert mask_token_id_of(folder, 7) == 7
    shape = drafter_config(config_of(folder, **{"drafter.mask_token_id": 7}), folder)
    assert shape.mask_token_id == 7


def test_without_a_mask_token_the_first_free_row_is_taken(folder: Path):
    without_mask_token(folder)
    tokens = json.loads((folder / "tokenizer.json").read_text())
    ids = [*tokens["model"]["vocab"].values(), *(t["id"] for t in tokens["added_tokens"])]
    fields = json.loads((folder / "config.json").read_text())
    fields["vocab_size"] = max(ids) + 9
    (folder / "config.json").write_text(json.dumps(fields))
    assert mask_token_id_of(folder) == max(ids) + 1


def test_without_a_mask_token_or_a_free_row_the_remedy_is_named(folder: Path):
    without_mask_token(folder)
    fields = json.loads((folder / "config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text())
    fields["vocab_size"] = max(tokens["model"]["vocab"].values()) + 1
    (folder / "config.json").write_text(json.dumps(fields))
    with pytest.raises(TargetModelError, match="set mask_token_id"):
        mask_token_id_of(folder)


def test_a_folder_without_tokenizer_is_refused(folder: Path):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TargetModelError, match=r"tokenizer.json does not exist"):
        mask_token_id_of(folder)


def test_the_shape_follows_the_target_where_nothing_else_is_said(folder: Path):
    shape = drafter_config(config_of(folder), folder)
    fields = json.loads((folder / "config.json").read_text())
    for name in ("hidden_size", "intermediate_size", "vocab_size", "head_dim"):
        assert getattr(shape, name) == fields[name]
    assert shape.num_target_layers == fields["num_hidden_layers"]
    assert shape.target_layer_ids == (1, 5)


def test_the_configuration_overrides_the_target(folder: Path):
    shape = drafter_config(
        config_of(
            folder,
            **{
                "drafter.intermediate_size": 64,
                "drafter.target_layer_ids": [0, 3, 6],
                "drafter.sliding_window": 32,
                "drafter.layer_types": ["sliding_attention", "full_attention"],
                "trainer.dtype": "bfloat16",
            },
        ),
        folder,
    )
    assert (shape.intermediate_size, shape.sliding_window) == (64, 32)
    assert shape.target_layer_ids == (0, 3, 6)
    assert shape.layer_types == ("sliding_attention", "full_attention")
    assert shape.dtype == "bfloat16"


def test_layers_the_target_does_not_have_are_refused(folder: Path):
    with pytest.raises(DrafterError, match="11"):
        drafter_config(config_of(folder, **{"drafter.target_layer_ids": [1, 11]}), folder)
