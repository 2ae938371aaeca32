"""Small real models: random Qwen3, Llama and hybrid targets in folders, and drafters for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from shared.dflash.batch import DrafterSample
from shared.dflash.config import DrafterConfig
from shared.dflash.model import DFlashDraftModel
from shared.dflash.target import TargetModel

VOCABULARY = 96
MASK_TOKEN = 95
_DIMENSIONS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_SLIDING = ["sliding_attention", "full_attention"] * 3


def _build(kind: str) -> PreTrainedModel:
    torch.manual_seed(11)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**_DIMENSIONS))
    if kind == "tied":
        return Qwen3ForCausalLM(Qwen3Config(**_DIMENSIONS, head_dim=16, tie_word_embeddings=True))
    if kind == "sliding":
        config = Qwen3Config(
            **_DIMENSIONS,
            head_dim=16,
            use_sliding_window=True,
            sliding_window=8,
            layer_types=_SLIDING,
        )
        return Qwen3ForCausalLM(config)
    if kind == "hybrid":
        config = Qwen3_5TextConfig(
            **_DIMENSIONS,
            head_dim=16,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        )
        return Qwen3_5ForCausalLM(config)
    return Qwen3ForCausalLM(Qwen3Config(**_DIMENSIONS, head_dim=16))


@pytest.fixture(autouse=True)
def _few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a random target of a kind: qwen3, tied, llama, sliding, hybrid."""
    made: dict[str, Path] = {}

    def folder(kind: str = "qwen3") -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(f"target-{kind}")
            model = _build(kind)
            if kind != "tied":
                # Fresh weights give almost flat logits; a real target is surer of itself.
                model.lm_head.weight.data *= 20
            model.save_pretrained(made[kind])
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def load_target(target_folder: Callable[[str], Path]) -> Callable[[str], TargetModel]:
    loaded: dict[str, TargetModel] = {}

    def load(kind: str = "qwen3") -> TargetModel:
        if kind not in loaded:
            loaded[kind] = TargetModel.load(target_folder(kind))
        return loaded[kind]

    return load


@pytest.fixture
def make_drafter() -> Callable[..., DFlashDraftModel]:
    """A random drafter for the targets above; keyword arguments override its configuration."""

    def make(seed: int = 1, **overrides: Any) -> DFlashDraftModel:
        fields: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": VOCABULARY,
            "num_target_layers": 6,
            "block_size": 4,
            "mask_token_id": MASK_TOKEN,
            "target_layer_ids": (1, 4),
            "rope_theta": 10_000.0,
            "max_position_embeddings": 96,
        }
        model = DFlashDraftModel(DrafterConfig(**{**fields, **overrides}))
        model.initialise(torch.Generator().manual_seed(seed))
        return model

    return make


@pytest.fixture
def make_sample() -> Callable[..., DrafterSample]:
    """A sample of random tokens and hidden states, supervised from `prompt` on."""

    def make(sample_id: int, length: int, prompt: int = 3, width: int = 64) -> DrafterSample:
        generator = torch.Generator().manual_seed(sample_id)
        mask = torch.zeros(length, dtype=torch.bool)
        mask[prompt:] = True
        return DrafterSample(
            sample_id,
            torch.randint(0, MASK_TOKEN, (length,), generator=generator),
            mask,
            torch.randn(length, width, generator=generator),
        )

    return make
