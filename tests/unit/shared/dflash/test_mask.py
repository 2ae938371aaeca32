"""Who sees whom: properties of the mask over random anchors; the sparse mask against the dense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention

from shared.dflash.attention import layer_masks
from shared.dflash.block_mask import block_mask
from shared.dflash.layout import BlockLayout
from shared.dflash.mask import decoding_mask, dense_mask
from shared.dflash.model import DFlashDraftModel
from tests.helpers.block_masks import materialise


@dataclass(frozen=True)
class Arrangement:
    """Rows of documents with anchors, some blocks unused."""

    layout: BlockLayout
    documents: torch.Tensor
    window: int | None
    is_causal: bool


@st.composite
def arrangements(draw: st.DrawFn, max_len: int = 40) -> Arrangement:
    seq_len = draw(st.integers(2, max_len))
    num_blocks = draw(st.integers(1, 6))
    block_size = draw(st.sampled_from([2, 4, 5, 8]))
    rows = draw(st.integers(1, 2))
    anchors = torch.tensor(
        [
            sorted(
                draw(
                    st.lists(st.integers(0, seq_len - 1), min_size=num_blocks, max_size=num_blocks)
                )
            )
            for _ in range(rows)
        ]
    )
    kept = torch.tensor(
        [
            draw(st.lists(st.booleans(), min_size=num_blocks, max_size=num_blocks))
            for _ in range(rows)
        ]
    )
    cuts = [draw(st.lists(st.integers(1, seq_len - 1), max_size=2)) for _ in range(rows)]
    documents = torch.zeros(rows, seq_len, dtype=torch.int64)
    for row, places in enumerate(cuts):
        for place in places:
            documents[row, place:] += 1
    layout = BlockLayout.of(
        anchors, kept, seq_len=seq_len, block_size=block_size, document_ids=documents
    )
    window = draw(st.one_of(st.none(), st.integers(1, 12)))
    return Arrangement(layout, documents, window, draw(st.booleans()))


@given(arrangements())
@settings(max_examples=60, deadline=None)
def test_every_pair_of_the_mask_obeys_the_rule(case: Arrangement) -> None:
    """The rule spelled out pair by pair, straight from its wording."""
    layout = case.layout
    mask = dense_mask(layout, case.window, is_causal=case.is_causal)
    seq_len, size = layout.seq_len, layout.block_size
    for row in range(layout.anchors.shape[0]):
        for block, anchor in enumerate(layout.anchors[row].tolist()):
            for slot in range(size):
                seen = mask[row, 0, block * size + slot]
                wanted = torch.zeros_like(seen)
                if layout.kept[row, block]:
                    for key in range(seq_len):
                        inside = case.documents[row, key] == case.documents[row, anchor]
                        near = case.window is None or key >= anchor + slot - (case.window - 1)
                        wanted[key] = bool(key < anchor and inside and near)
                    last = size if case.window is None or not case.is_causal else slot + 1
                    start = seq_len + block * size
                    wanted[start : start + last] = True
                assert torch.equal(seen, wanted), (row, block, slot)


@given(arrangements(max_len=80), st.sampled_from([8, 16, 32]))
@settings(max_examples=60, deadline=None)
def test_block_mask_is_the_dense_mask(case: Arrangement, tile: int) -> None:
    sparse = block_mask(case.layout, case.window, is_causal=case.is_causal, tile=tile)
    dense = dense_mask(case.layout, case.window, is_causal=case.is_causal)
    assert torch.equal(materialise(sparse), dense)


def test_block_mask_skips_and_fills_tiles() -> None:
    """The point of the sparse form: far tiles are skipped, tiles inside the context are full."""
    anchors = torch.arange(256, 1024, 24)[None]
    layout = BlockLayout.of(
        anchors, torch.ones_like(anchors, dtype=torch.bool), seq_len=1024, block_size=16
    )
    mask = block_mask(layout)
    visited = mask.kv_num_blocks + mask.full_kv_num_blocks
    assert mask.full_kv_num_blocks.min() >= 2
    assert visited.max() <= 8 + 2
    assert torch.equal(materialise(mask), dense_mask(layout))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_with_the_block_mask_equals_the_dense_one() -> None:
    torch.manual_seed(0)
    anchors = torch.tensor([[3, 9, 20], [5, 6, 0]])
    kept = torch.tensor([[True, True, True], [True, True, False]])
    layout = BlockLayout.of(anchors, kept, seq_len=24, block_size=4)
    queries, keys = torch.randn(2, 4, 12, 16), torch.randn(2, 2, 36, 16)
    values = torch.randn(2, 2, 36, 16)
    for window in (None, 6):
        got = flex_attention(
            queries, keys, values, block_mask=block_mask(layout, window), enable_gqa=True
        )
        wanted = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=dense_mask(layout, window), enable_gqa=True
        )
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [3, 9])
def test_decoding_mask_is_the_training_mask_of_the_last_block(window: int, is_causal: bool) -> None:
    anchor, size = 10, 4
    layout = BlockLayout.of(
        torch.tensor([[anchor]]), torch.tensor([[True]]), seq_len=anchor + 1, block_size=size
    )
    training = dense_mask(layout, window, is_causal=is_causal)
    columns = [*range(anchor), *range(anchor + 1, anchor + 1 + size)]
    decoding = decoding_mask(anchor, size, window, is_causal=is_causal)
    assert torch.equal(decoding, training[..., columns])


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_block_depends_on_nothing_but_its_context_and_itself(data: st.DataObject) -> None:
    """Through the whole model: disturb all a block must not see, and its output stays the same."""
    model = _MODEL
    size, seq_len = model.config.block_size, 20
    anchors = sorted(data.draw(st.sets(st.integers(0, seq_len - 2), min_size=2, max_size=5)))
    chosen = data.draw(st.integers(0, len(anchors) - 1))
    positions = torch.tensor([anchors])
    layout = BlockLayout.of(
        positions, torch.ones_like(positions, dtype=torch.bool), seq_len=seq_len, block_size=size
    )
    masks = layer_masks(model.config, layout)
    generator = torch.Generator().manual_seed(len(anchors))
    states = torch.randn(1, seq_len, 64, generator=generator)
    blocks = torch.randn(1, len(anchors), size, 32, generator=generator)

    def output(target: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            hidden = model(embeddings.flatten(1, 2), target, layout, masks)
        return hidden.unflatten(1, (-1, size))[0, chosen]

    before = output(states, blocks)
    other_states, other_blocks = states.clone(), blocks.clone()
    other_states[:, anchors[chosen] :] = 7.0
    other_blocks[:, [n for n in range(len(anchors)) if n != chosen]] = -3.0
    assert torch.equal(output(other_states, other_blocks), before)
    if anchors[chosen] > 0:
        nearer = states.clone()
        nearer[:, anchors[chosen] - 1] += 1.0
        assert not torch.equal(output(nearer, blocks), before)


def test_model_uses_the_window_of_each_layer(make_drafter: Callable[..., DFlashDraftModel]) -> None:
    """With only narrow sliding layers, far context is out of reach; one full layer reaches it."""
    anchors = torch.tensor([[15]])
    layout = BlockLayout.of(anchors, anchors > 0, seq_len=18, block_size=4)
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(1, 18, 64, generator=generator)
    blocks = torch.randn(1, 4, 32, generator=generator)
    far = states.clone()
    far[:, :8] += 1.0
    for last_layer, reached in (("sliding_attention", False), ("full_attention", True)):
        model = make_drafter(layer_types=("sliding_attention", last_layer), sliding_window=6)
        with torch.no_grad():
            same = torch.equal(model(blocks, states, layout), model(blocks, far, layout))
        assert same is not reached


def _tiny_model() -> DFlashDraftModel:
    from shared.dflash.config import DrafterConfig

    config = DrafterConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=96, num_target_layers=6, block_size=4,
        mask_token_id=95, target_layer_ids=(1, 4), sliding_window=5,
        layer_types=("sliding_attention", "full_attention"),
    )  # fmt: skip
    model = DFlashDraftModel(config)
    model.initialise(torch.Generator().manual_seed(1))
    return model


_MODEL = _tiny_model()
