"""A small target folder and a maker of micro-batches with random hidden states."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shared.config import RunConfig
from shared.config.loading import resolve_config
from shared.dflash.config import DrafterConfig
from shared.messages import HiddenStates, MicroBatch
from workers.drafter_trainer.items import TrainingItem

VOCABULARY, HIDDEN = 48, 16
MakeItem = Callable[..., TrainingItem]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The two matrices that a trainer reads, and a config.json."""
    folder = tmp_path / "target"
    folder.mkdir()
    fields = {
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": 32,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(fields))
    weights = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(1))
    save_file({"model.embed_tokens.weight": weights}, folder / "model.safetensors")
    return folder


@pytest.fixture
def shape(target: Path) -> DrafterConfig:
    return DrafterConfig.for_target(
        json.loads((target / "config.json").read_text()),
        num_hidden_layers=2,
        block_size=4,
        mask_token_id=VOCABULARY - 1,
    )


@pytest.fixture
def config(target: Path) -> RunConfig:
    return make_config(target)


def make_config(target: Path, **overrides: object) -> RunConfig:
    base = {
        "target.path": str(target),
        "data.prompts": "prompts.jsonl",
        "trainer.dtype": "float32",
        "trainer.num_anchors": 6,
        "trainer.lr": 1e-2,
        "drafter.num_hidden_layers": 2,
        "drafter.block_size": 4,
    }
    return resolve_config(overrides={**base, **overrides})


@pytest.fixture
def make_item(shape: DrafterConfig) -> MakeItem:
    """Micro-batch `number` of a plan of three-micro-batch steps; always the same content."""

    def make(
        number: int, *, num_in_step: int = 3, last_id: int = 10**6, bad: tuple[int, ...] = ()
    ) -> TrainingItem:
        generator = torch.Generator().manual_seed(number)
        lengths = [12 + number % 3, 9]
        sample_ids = [2 * number, 2 * number + 1]
        num_tokens = sum(lengths)
        micro_batch = MicroBatch(
            run_id="run",
            micro_batch_id=number,
            epoch=number // 30,
            step=number // num_in_step,
            index_in_step=number % num_in_step,
            num_in_step=num_in_step,
            steps_total=40,
            last=number == last_id,
            sample_ids=sample_ids,
            lengths=lengths,
            padded_length=16,
        )
        loss_mask = torch.ones(num_tokens, dtype=torch.uint8)
        loss_mask[:3] = 0
        states = torch.randn(num_tokens, shape.target_hidden_size, generator=generator)
        message = HiddenStates(micro_batch, list(shape.target_layer_ids), list(bad), 0.0)
        ids = torch.randint(0, VOCABULARY - 1, (num_tokens,), generator=generator)
        return TrainingItem(message, ids, loss_mask, states)

    return make
