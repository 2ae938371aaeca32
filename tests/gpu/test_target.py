"""The target and speculative decoding on a GPU."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from shared.dflash.config import DrafterConfig
from shared.dflash.drafters import DFlashDrafter
from shared.dflash.model import DFlashDraftModel
from shared.dflash.speculative import measure_acceptance
from shared.dflash.target import TargetModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
]


def make_target(dtype: torch.dtype) -> TargetModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=512,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return TargetModel(Qwen3ForCausalLM(config).to("cuda", dtype))


def test_compiled_layers_give_the_same_states() -> None:
    target = make_target(torch.float32)
    ids = torch.randint(0, 512, (2, 90), device="cuda")
    eager = target.hidden_states(ids, [90, 70], (1, 4))
    target.compile_layers()
    compiled = target.hidden_states(ids, [90, 70], (1, 4))
    torch.testing.assert_close(compiled, eager, atol=1e-3, rtol=1e-3)


def test_states_in_half_precision_are_close_to_the_cpu() -> None:
    ids = torch.randint(0, 512, (2, 90), generator=torch.Generator().manual_seed(1))
    half = make_target(torch.bfloat16).hidden_states(ids, None, (1, 4)).float().cpu()
    torch.manual_seed(0)
    full = make_target(torch.float32).hidden_states(ids, None, (1, 4)).cpu()
    assert (half - full).norm() / full.norm() < 0.02


@pytest.mark.parametrize("block_size", [4, 16])
def test_speculative_decoding_is_greedy(block_size: int) -> None:
    target = make_target(torch.float32)
    config = DrafterConfig.for_target(
        target.config, num_hidden_layers=2, block_size=block_size, mask_token_id=511,
        target_layer_ids=(1, 4), layer_types=("sliding_attention", "full_attention"),
        sliding_window=20,
    )  # fmt: skip
    model = DFlashDraftModel(config)
    model.initialise(torch.Generator().manual_seed(0))
    drafter = DFlashDrafter(model.cuda(), target.head)
    prompts = [[5], [1, 2, 3], list(range(100))]
    result = measure_acceptance(target, drafter, prompts, 40, compare_with_greedy=True)
    assert result.num_equal_to_greedy == 3
