"""config.json of a drafter: the keys servers need, and refusals that name what is wrong."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.dflash.config import DrafterConfig, default_target_layer_ids
from shared.dflash.target_shape import TargetShape, choose_mask_token_id
from shared.errors import DrafterError, TargetModelError

CONFIG = DrafterConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=100,
    num_target_layers=8,
    block_size=8,
    mask_token_id=99,
    target_layer_ids=(1, 3, 5),
    rope_theta=1e7,
)
SLIDING = dataclasses.replace(
    CONFIG,
    layer_types=("sliding_attention", "sliding_attention", "full_attention"),
    sliding_window=16,
)


@pytest.mark.parametrize(
    ("target", "draft", "ids"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (64, 5, (1, 16, 31, 46, 61)),
        (28, 5, (1, 7, 13, 19, 25)),
        (30, 5, (1, 8, 14, 20, 27)),
        (32, 5, (1, 8, 15, 22, 29)),
        (9, 1, (4,)),
        (8, 2, (1, 5)),
    ],
)
def test_default_layer_ids(target: int, draft: int, ids: tuple[int, ...]) -> None:
    assert default_target_layer_ids(target, draft) == ids


@pytest.mark.parametrize(("target", "draft"), [(4, 2), (6, 5), (3, 3), (2, 2)])
def test_few_target_layers_ask_for_explicit_ids(target: int, draft: int) -> None:
    with pytest.raises(DrafterError, match="set target_layer_ids explicitly"):
        default_target_layer_ids(target, draft)


@pytest.mark.parametrize("config", [CONFIG, SLIDING, dataclasses.replace(SLIDING, is_causal=False)])
def test_json_round_trip(config: DrafterConfig) -> None:
    assert DrafterConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_keys_that_servers_need() -> None:
    fields = CONFIG.to_dict()
    assert fields["architectures"] == ["DFlashDraftModel"]
    assert fields["model_type"] == "qwen3"
    assert fields["rope_theta"] == fields["rope_parameters"]["rope_theta"] == 1e7
    assert fields["dflash_config"] == {"mask_token_id": 99, "target_layer_ids": [1, 3, 5]}
    assert fields["block_size"] == 8
    assert fields["tie_word_embeddings"] is False
    assert fields["layer_types"] == ["full_attention"] * 3
    assert (fields["sliding_window"], fields["use_sliding_window"]) == (None, False)
    assert "auto_map" not in fields and "is_causal" not in fields
    sliding = SLIDING.to_dict()
    assert (sliding["sliding_window"], sliding["use_sliding_window"]) == (16, True)


def test_every_missing_and_unknown_key_is_named() -> None:
    fields = CONFIG.to_dict()
    del fields["head_dim"], fields["dflash_config"]["target_layer_ids"]
    fields |= {"num_anchor": 3, "dflash_config": {**fields["dflash_config"], "mask_id": 1}}
    with pytest.raises(DrafterError) as caught:
        DrafterConfig.from_dict(fields, where="somewhere/config.json")
    text = str(caught.value)
    for part in (
        "somewhere/config.json",
        "missing key head_dim",
        "missing key dflash_config.target_layer_ids",
        "unknown key num_anchor",
        "unknown key dflash_config.mask_id",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"rope_theta": 10_000}, "contradicts"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7}}, "yarn"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "architectures"),
        ({"layer_types": ["sliding_attention"] * 3}, "use_sliding_window"),
        ({"use_sliding_window": True, "layer_types": None}, "layer_types is missing"),
        ({"dflash_config": None}, "dflash_config"),
        ({"dtype": "int8"}, "dtype"),
        ({"block_size": 1}, "block_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_key_value_heads": 3}, "multiple"),
    ],
)
def test_what_cannot_be_honoured_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DrafterError, match=message):
        DrafterConfig.from_dict({**CONFIG.to_dict(), **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_layer_ids": (1, 8)}, r"\[8\] lie outside the target's layers 0..7"),
        ({"target_layer_ids": (1, 1)}, r"repeats \[1\]"),
        ({"target_layer_ids": ()}, "empty"),
        ({"mask_token_id": 100}, "mask_token_id 100"),
        ({"layer_types": ("full_attention",)}, "layer_types has 1"),
        ({"layer_types": ("sliding_attention",) * 3}, "sliding_window is None"),
        ({"head_dim": 15}, "odd"),
    ],
)
def test_contradictory_fields(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DrafterError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_published_configurations_are_read() -> None:
    """A config.json as the authors' tools write it, with keys that are of no concern here."""
    fields = {
        **CONFIG.to_dict(),
        "rope_scaling": None,
        "transformers_version": "4.57.1",
        "use_cache": True,
        "initializer_range": 0.02,
        "torch_dtype": "bfloat16",
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    }
    del fields["dtype"], fields["rope_parameters"]
    config = DrafterConfig.from_dict(fields)
    assert config == dataclasses.replace(CONFIG, dtype="bfloat16")


def test_drafter_for_a_target_takes_its_dimensions() -> None:
    target = {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 248320,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000},
    }
    config = DrafterConfig.for_target(
        {"text_config": target},
        num_hidden_layers=5,
        block_size=16,
        mask_token_id=248070,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        layer_types=["sliding_attention"] * 4 + ["full_attention"],
        sliding_window=2048,
        dtype="bfloat16",
    )
    assert config.target_layer_ids == (1, 16, 31, 46, 61)
    assert config.rope_theta == 1e7
    assert config.num_parameters == pytest.approx(1.73e9, rel=0.01)
    config.require_fit(TargetShape.of(target))
    with pytest.raises(DrafterError) as caught:
        config.require_fit(TargetShape.of({**target, "hidden_size": 4096, "vocab_size": 151936}))
    assert "hidden_size is 5120 in the drafter and 4096 in the target" in str(caught.value)
    assert "vocab_size" in str(caught.value)


def test_parameters_of_the_8b_drafter() -> None:
    target = {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "rope_theta": 1e6,
    }  # fmt: skip
    config = DrafterConfig.for_target(
        target, num_hidden_layers=5, block_size=16, mask_token_id=151669
    )
    assert config.num_parameters == pytest.approx(1.05e9, rel=0.01)


def test_target_that_is_no_language_model(tmp_path: Path) -> None:
    with pytest.raises(TargetModelError, match="does not exist"):
        TargetShape.read(tmp_path / "nowhere")
    with pytest.raises(TargetModelError, match=r"config\.json does not exist"):
        TargetShape.read(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(TargetModelError, match="lacks hidden_size"):
        TargetShape.read(tmp_path)


def test_mask_token_choice() -> None:
    sizes = {"vocab_size": 100, "tokenizer_size": 97}
    assert choose_mask_token_id(**sizes, explicit=3) == 3
    assert choose_mask_token_id(**sizes, tokenizer_mask_id=5) == 5
    assert choose_mask_token_id(**sizes) == 97
    assert choose_mask_token_id(**sizes, used_ids={97}) == 98
    with pytest.raises(TargetModelError, match="set mask_token_id"):
        choose_mask_token_id(vocab_size=97, tokenizer_size=97)
    with pytest.raises(TargetModelError, match="outside"):
        choose_mask_token_id(**sizes, explicit=100)


def test_reading_a_configuration_loads_no_torch() -> None:
    code = "import sys, shared.dflash.config; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_broken_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DrafterError, match=r"config\.json"):
        DrafterConfig.read(path)
