"""The drafter on a GPU: block mask, flex_attention and a whole training step against the CPU path.

`pytest -m gpu tests/gpu` checks; `python tests/gpu/test_block_mask.py` also prints the timings at
training shapes, with the measured matmul rate and copy bandwidth of the same GPU beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from shared.dflash.attention import attend
from shared.dflash.batch import DrafterBatch
from shared.dflash.block_mask import block_mask
from shared.dflash.config import DrafterConfig
from shared.dflash.layout import BlockLayout
from shared.dflash.mask import dense_mask
from shared.dflash.model import DFlashDraftModel
from shared.dflash.objective import training_terms
from shared.dflash.optimizer import DrafterOptimizer
from shared.dflash.target_head import TargetHead
from tests.helpers.block_masks import materialise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # The first compiled kernel takes its time, and torch warns about its own internals.
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
]


def layout_of(
    rows: int, seq_len: int, num_anchors: int, block_size: int, *, documents: int = 1, seed: int = 0
) -> BlockLayout:
    """Random sorted anchors, the last two of the last row unused; on the GPU."""
    generator = torch.Generator().manual_seed(seed)
    anchors = torch.stack(
        [
            torch.randperm(seq_len - 1, generator=generator)[:num_anchors].sort().values
            for _ in range(rows)
        ]
    )
    kept = torch.ones_like(anchors, dtype=torch.bool)
    kept[-1, -2:] = False
    ids = (torch.arange(seq_len) * documents // seq_len).expand(rows, -1)
    return BlockLayout.of(
        anchors.cuda(),
        kept.cuda(),
        seq_len=seq_len,
        block_size=block_size,
        document_ids=ids.cuda() if documents > 1 else None,
    )


SHAPES = [
    pytest.param(2, 300, 24, 16, 1, id="block 16"),
    pytest.param(1, 517, 33, 10, 1, id="block 10"),
    pytest.param(2, 256, 32, 8, 3, id="packed"),
]


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(("rows", "seq_len", "num_anchors", "size", "documents"), SHAPES)
def test_block_mask_is_the_dense_mask(
    rows: int, seq_len: int, num_anchors: int, size: int, documents: int, window: int | None
) -> None:
    layout = layout_of(rows, seq_len, num_anchors, size, documents=documents)
    for is_causal in (True, False):
        sparse = block_mask(layout, window, is_causal=is_causal)
        assert torch.equal(materialise(sparse), dense_mask(layout, window, is_causal=is_causal))


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(("rows", "seq_len", "num_anchors", "size", "documents"), SHAPES)
def test_flex_attention_equals_dense_attention(
    rows: int, seq_len: int, num_anchors: int, size: int, documents: int, window: int | None
) -> None:
    """Outputs and gradients, in float32 with full precision."""
    torch.manual_seed(1)
    layout = layout_of(rows, seq_len, num_anchors, size, documents=documents)
    num_keys = seq_len + layout.num_queries
    shapes = ((8, layout.num_queries), (2, num_keys), (2, num_keys))
    tensors = [torch.randn(rows, heads, length, 64, device="cuda") for heads, length in shapes]
    weight = torch.randn(rows, 8, layout.num_queries, 64, device="cuda")
    results = []
    for mask in (block_mask(layout, window), dense_mask(layout, window)):
        inputs = [tensor.clone().requires_grad_() for tensor in tensors]
        output = attend(*inputs, mask)
        (output * weight).sum().backward()
        results.append([output.detach(), *(one.grad for one in inputs)])
    # flex_attention multiplies in TF32 unless told otherwise, hence the tolerance.
    for ours, dense in zip(*results, strict=True):
        error = (ours - dense).norm() / dense.norm()
        assert error < 3e-3


def drafter_config(**overrides: object) -> DrafterConfig:
    fields: dict[str, object] = {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000,
        "num_target_layers": 8, "block_size": 8, "mask_token_id": 999, "target_layer_ids": (1, 5),
        "layer_types": ("sliding_attention", "full_attention", "full_attention"),
        "sliding_window": 50,
    }  # fmt: skip
    return DrafterConfig(**{**fields, **overrides})  # type: ignore[arg-type]


def batch_of(config: DrafterConfig, rows: int, seq_len: int, num_anchors: int) -> DrafterBatch:
    generator = torch.Generator().manual_seed(2)
    anchors = layout_of(rows, seq_len, num_anchors, config.block_size).anchors.cpu()
    return DrafterBatch(
        torch.randint(0, config.vocab_size - 1, (rows, seq_len), generator=generator),
        torch.ones(rows, seq_len, dtype=torch.bool),
        torch.randn(rows, seq_len, config.target_hidden_size, generator=generator),
        anchors,
        torch.ones_like(anchors, dtype=torch.bool),
    )


def test_training_step_equals_the_cpu() -> None:
    config = drafter_config()
    batch = batch_of(config, 2, 200, 20)
    torch.manual_seed(0)
    head = TargetHead(torch.randn(1000, 256), torch.randn(1000, 256) * 0.1)
    results = []
    for device in ("cpu", "cuda"):
        model = DFlashDraftModel(config)
        model.initialise(torch.Generator().manual_seed(1))
        model.to(device)
        moved = TargetHead(head.embedding.to(device), head.lm_head.to(device))
        terms = training_terms(model, moved, batch.to(device))
        terms.loss_sum.backward()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        results.append((terms.to_vector().cpu(), gradients))
    assert results[1][0][0].item() == pytest.approx(results[0][0][0].item(), rel=1e-4)
    assert results[1][0][1].item() == pytest.approx(results[0][0][1].item(), rel=1e-6)
    for ours, cpu in zip(results[1][1], results[0][1], strict=True):
        assert (ours - cpu).norm() / cpu.norm() < 1e-2


@pytest.mark.filterwarnings("error:flex_attention called without torch.compile")
def test_one_kernel_serves_batches_of_several_shapes() -> None:
    """Different lengths, anchors and rows, one after another, within the recompile limit."""
    config = drafter_config()
    model = DFlashDraftModel(config).cuda().bfloat16()
    model.initialise(torch.Generator().manual_seed(1))
    head = TargetHead(*(torch.randn(2, 1000, 256, device="cuda", dtype=torch.bfloat16)))
    for number in range(14):
        batch = batch_of(config, 1 + number % 2, 128 + 64 * number, 8 + 4 * number)
        terms = training_terms(model, head, batch.to("cuda", torch.bfloat16))
        terms.loss_sum.backward()
        assert terms.loss_sum.isfinite()


def test_building_at_training_shape_takes_under_50_ms() -> None:
    layout = layout_of(1, 4096, 512, 16)
    assert seconds(lambda: block_mask(layout)) < 0.050


def seconds(call: Callable[[], object], repeats: int = 10) -> float:
    """Mean time of a call on the GPU, after warming up."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def _ceilings() -> tuple[float, float]:
    """Measured bf16 matmul rate in FLOP/s and copy bandwidth in bytes/s."""
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    matmul = 2 * 8192**3 / seconds(lambda: left @ left)
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.numel() / seconds(lambda: target.copy_(source))
    return matmul, copy


def _attention_rows(matmul: float) -> None:
    for name, window in (("full", None), ("window 2048", 2048)):
        layout = layout_of(1, 4096, 512, 16)
        first = time.perf_counter()
        mask = block_mask(layout, window)
        torch.cuda.synchronize()
        first = time.perf_counter() - first
        built = seconds(lambda w=window, one=layout: block_mask(one, w))
        pairs = int(dense_mask(layout, window).sum())
        keys = 4096 + layout.num_queries
        shapes = ((32, layout.num_queries), (8, keys), (8, keys))
        inputs = [
            torch.randn(1, h, n, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for h, n in shapes
        ]
        forward = seconds(lambda m=mask, i=inputs: attend(*i, m))

        def both(m: object = mask, i: list[Tensor] = inputs) -> None:
            attend(*i, m).sum().backward()  # type: ignore[arg-type]

        step = seconds(both)
        useful = 4 * pairs * 32 * 128
        print(
            f"attention S 4096 N 512 block 16, {name}: mask {built * 1e3:.2f} ms (first "
            f"{first * 1e3:.0f}), forward {forward * 1e3:.2f} ms ({useful / forward / matmul:.0%} "
            f"of matmul), forward and backward {step * 1e3:.2f} ms "
            f"({3.5 * useful / step / matmul:.0%})"
        )


def _training_row(matmul: float) -> None:
    """A step of the drafter of Qwen3-8B on one sample of 3,072 tokens."""
    config = drafter_config(
        hidden_size=4096, intermediate_size=12288, num_hidden_layers=5, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=151_936, num_target_layers=36,
        block_size=16, mask_token_id=151_669, target_layer_ids=(1, 9, 17, 25, 33), layer_types=(),
        sliding_window=None,
    )  # fmt: skip
    model = DFlashDraftModel(config).cuda().bfloat16()
    model.initialise(torch.Generator().manual_seed(1))
    head = TargetHead(*(torch.randn(2, 151_936, 4096, device="cuda", dtype=torch.bfloat16) * 0.02))
    batch = batch_of(config, 1, 3072, 512).to("cuda", torch.bfloat16)
    layout = batch.layout(16)
    optimizer = DrafterOptimizer(model)

    def passes() -> None:
        training_terms(model, head, batch).loss_sum.backward()

    def whole() -> None:
        passes()
        optimizer.step(1e-4, 1000.0)

    torch.cuda.reset_peak_memory_stats()
    both = seconds(passes, 5)
    step = seconds(whole, 5)
    blocks = layout.num_queries
    context_only = 5 * 4096 * 4096 + 5 * 2 * 4096 * 1024
    linear = 6 * (config.num_parameters - 5 * 4096 * 4096) * blocks + 6 * context_only * 3072
    linear += 2 * 3 * 151_936 * 4096 * blocks * 15 // 16 * 2 // 3  # no gradient of the lm_head
    pairs = int(dense_mask(layout).sum())
    flops = linear + 5 * 3.5 * 4 * pairs * 32 * 128
    print(
        f"training S 3072 N 512, drafter of Qwen3-8B: forward and backward {both * 1e3:.0f} ms = "
        f"{3.072 / both:.1f} Ktok/s ({flops / both / matmul:.0%} of matmul), with optimizer "
        f"{step * 1e3:.0f} ms, peak {torch.cuda.max_memory_allocated() / 2**30:.0f} GiB"
    )


def main() -> None:
    matmul, copy = _ceilings()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"ceiling: matmul {matmul / 1e12:.0f} TFLOP/s, copy {copy / 1e9:.0f} GB/s")
    _attention_rows(matmul)
    _training_row(matmul)


if __name__ == "__main__":
    main()
