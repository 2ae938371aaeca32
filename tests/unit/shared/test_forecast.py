"""The forecast agrees with figures measured on real runs."""

import pytest

from shared.config import RunConfig, resolve_config
from shared.errors import ConfigError, TargetModelError
from shared.forecast import TargetShape, forecast, gpu_named, gpu_table

QWEN3_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
}


def config(**overrides: object) -> RunConfig:
    tree = {"target": {"path": "x"}, "data": {"prompts": "x"}}
    return resolve_config(
        tree, overrides={key.replace("__", "."): v for key, v in overrides.items()}
    )


def test_parameter_counts_of_a_known_model() -> None:
    shape = TargetShape.from_config(QWEN3_8B)
    assert shape.num_params == pytest.approx(8.19e9, rel=0.01)
    result = forecast(config(), shape, num_prompts=1000)
    assert result.drafter_params == pytest.approx(1.05e9, rel=0.01)
    assert result.hidden_states_bytes_per_token == 40_960


def test_offline_hidden_states_of_the_27b_run_are_about_90_terabytes() -> None:
    shape = TargetShape.from_config({**QWEN3_8B, "hidden_size": 5120, "num_hidden_layers": 64})
    result = forecast(config(), shape, num_prompts=902_000, tokens_per_sample=2000)
    assert result.hidden_states_offline_bytes == pytest.approx(92e12, rel=0.02)


def test_rates_scale_with_the_accelerator_and_name_the_slower_side() -> None:
    shape = TargetShape.from_config(QWEN3_8B)
    slow = forecast(config(), shape, num_prompts=1000, gpu=gpu_named("h200"))
    fast = forecast(config(), shape, num_prompts=1000, gpu=gpu_named("b200"))
    assert slow.target_tokens_per_s == pytest.approx(41_300, rel=0.1)
    assert fast.train_s is not None and slow.train_s is not None and fast.train_s < slow.train_s
    assert slow.bottleneck == "drafter_trainer"
    many_anchors = config(trainer__num_anchors=16)
    light = forecast(many_anchors, shape, num_prompts=1000, gpu=gpu_named("h200"))
    assert light.bottleneck == "target_forward"


def test_too_small_gpu_and_full_disk_are_warned_of() -> None:
    shape = TargetShape.from_config({**QWEN3_8B, "hidden_size": 8192, "num_hidden_layers": 80})
    result = forecast(
        config(), shape, num_prompts=10**6, gpu=gpu_named("l40s"), free_disk_bytes=1e9
    )
    assert any("target_forward needs" in warning for warning in result.warnings)
    assert any("free" in warning for warning in result.warnings)


def test_experts_and_linear_attention_are_counted_apart() -> None:
    moe = TargetShape.from_config(
        {**QWEN3_8B, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    )
    assert moe.active_params_per_layer < moe.params_per_layer / 5
    hybrid = TargetShape.from_config(
        {
            "text_config": {
                **QWEN3_8B,
                "layer_types": ["linear_attention"] * 27 + ["full_attention"] * 9,
                "linear_num_key_heads": 16,
                "linear_key_head_dim": 128,
                "linear_num_value_heads": 32,
                "linear_value_head_dim": 128,
            }
        }
    )
    assert hybrid.params_per_layer != TargetShape.from_config(QWEN3_8B).params_per_layer


def test_clear_errors() -> None:
    with pytest.raises(TargetModelError, match="hidden_size"):
        TargetShape.from_config({"vocab_size": 3})
    with pytest.raises(ConfigError, match="h2000") as caught:
        gpu_named("h2000")
    assert caught.value.errors[0].suggestion == "h200"
    assert all(gpu.bf16_tflops > 100 for gpu in gpu_table().values())
