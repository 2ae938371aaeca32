"""The frozen target: captured layers, padding, cached steps, and folders that cannot be used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.dflash.target import TargetModel
from shared.dflash.target_head import TargetHead
from shared.errors import TargetModelError

KINDS = ["qwen3", "llama", "sliding", "hybrid"]
IDS = (1, 4, 5)
Load = Callable[[str], TargetModel]
Folder = Callable[[str], Path]


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 95, (rows, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_the_outputs_of_the_named_layers(kind: str, load_target: Load) -> None:
    """Against the library's own hidden_states, where entry i + 1 is the output of layer i."""
    target, ids = load_target(kind), tokens(2, 20)
    with torch.no_grad():
        reference = target._model(ids, output_hidden_states=True, use_cache=False).hidden_states
    states = target.hidden_states(ids, None, (4, 0, 2))
    wanted = torch.cat([reference[5], reference[1], reference[3]], dim=-1)
    torch.testing.assert_close(states, wanted, atol=1e-6, rtol=1e-6)


def test_last_layer_is_captured_before_the_final_norm(load_target: Load) -> None:
    target, ids = load_target("qwen3"), tokens(1, 9)
    states = target.hidden_states(ids, None, (5,))
    normed = target._decoder.norm(states)
    with torch.no_grad():
        last = target._model(ids, output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(normed, last, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_batched_states_equal_unbatched_ones(kind: str, load_target: Load) -> None:
    target, ids, lengths = load_target(kind), tokens(3, 24), [24, 13, 5]
    batched = target.hidden_states(ids, lengths, IDS)
    assert batched.shape == (3, 24, 96)
    for row, length in enumerate(lengths):
        alone = target.hidden_states(ids[row : row + 1, :length], None, IDS)
        torch.testing.assert_close(batched[row, :length], alone[0], atol=1e-5, rtol=1e-5)
        assert not batched[row, length:].any()


def test_nothing_above_the_highest_captured_layer_runs(load_target: Load) -> None:
    target = load_target("qwen3")
    ran: list[int] = []
    modules = [*target._decoder.layers, target._decoder.norm, target.lm_head]
    hooks = [
        module.register_forward_hook(lambda *_args, n=number: ran.append(n))
        for number, module in enumerate(modules)
    ]
    try:
        target.hidden_states(tokens(1, 6), None, (1, 3))
    finally:
        for hook in hooks:
            hook.remove()
    assert ran == [0, 1, 2, 3]


def test_states_can_be_trained_on(load_target: Load) -> None:
    states = load_target("qwen3").hidden_states(tokens(1, 6), None, IDS)
    weight = torch.ones(96, requires_grad=True)
    (states * weight).sum().backward()
    assert weight.grad is not None


def test_layers_outside_the_target(load_target: Load) -> None:
    with pytest.raises(ValueError, match=r"\[1, 6\] must name layers between 0 and 5"):
        load_target("qwen3").hidden_states(tokens(1, 4), None, (1, 6))


@pytest.mark.parametrize("kind", KINDS)
def test_cached_steps_equal_one_pass(kind: str, load_target: Load) -> None:
    target, ids = load_target(kind), tokens(1, 30)
    whole = target.hidden_states(ids, None, (1, 4))
    cache = target.new_cache()
    parts = [
        target.step(part, cache, target_layer_ids=(1, 4)).captured
        for part in ids.split([11, 1, 7, 11], dim=1)
    ]
    assert cache.length == 30
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3", "sliding"])
def test_cropped_cache_forgets(kind: str, load_target: Load) -> None:
    target, ids = load_target(kind), tokens(1, 30)
    cache, other = target.new_cache(), target.new_cache()
    target.step(ids[:, :20], cache)
    target.step(tokens(1, 9).flip(1), cache)
    cache.crop(20)
    target.step(ids[:, :20], other)
    got, wanted = target.step(ids[:, 20:], cache), target.step(ids[:, 20:], other)
    assert torch.equal(got.last_hidden, wanted.last_hidden)


def test_copied_cache_is_independent(load_target: Load) -> None:
    target, ids = load_target("hybrid"), tokens(1, 12)
    cache = target.new_cache()
    assert not cache.croppable
    target.step(ids[:, :8], cache)
    kept = cache.copy()
    first = target.step(ids[:, 8:], cache).last_hidden
    assert torch.equal(target.step(ids[:, 8:], kept).last_hidden, first)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_can_be_dropped_from_a_cache(kind: str, load_target: Load) -> None:
    target, ids = load_target(kind), tokens(3, 16)
    cache, alone = target.new_cache(), target.new_cache()
    target.step(ids[:, :10], cache)
    cache.select_rows(torch.tensor([0, 2]))
    got = target.step(ids[[0, 2], 10:], cache).last_hidden
    target.step(ids[[0, 2], :10], alone)
    wanted = target.step(ids[[0, 2], 10:], alone).last_hidden
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3", "tied"])
def test_head_alone_equals_the_models(kind: str, target_folder: Folder, load_target: Load) -> None:
    head, target = TargetHead.load(target_folder(kind)), load_target(kind)
    assert torch.equal(head.embedding, target.head.embedding)
    assert torch.equal(head.lm_head, target.head.lm_head)
    assert head.tied is (kind == "tied")
    assert torch.equal(head.embed(tokens(1, 3)), target.embed_tokens(tokens(1, 3)))


def test_head_of_a_sharded_checkpoint(target_folder: Folder, tmp_path: Path) -> None:
    source = target_folder("qwen3")
    tensors = load_file(source / "model.safetensors")
    shutil.copy(source / "config.json", tmp_path)
    names = sorted(tensors)
    files = {name: f"model-{n % 2}.safetensors" for n, name in enumerate(names)}
    for file in set(files.values()):
        save_file({n: tensors[n] for n in names if files[n] == file}, tmp_path / file)
    index = {"weight_map": files}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    head = TargetHead.load(tmp_path)
    assert torch.equal(head.lm_head, tensors["lm_head.weight"])
    (tmp_path / files["lm_head.weight"]).unlink()
    with pytest.raises(TargetModelError, match=r"cannot read .*weight from"):
        TargetHead.load(tmp_path)


def test_unusable_folders(target_folder: Folder, tmp_path: Path) -> None:
    for load in (TargetModel.load, TargetHead.load):
        with pytest.raises(TargetModelError, match="does not exist"):
            load(tmp_path / "nowhere")
    shutil.copytree(target_folder("qwen3"), tmp_path / "broken")
    weights = tmp_path / "broken" / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.layers.2.mlp.up_proj.weight"], tensors["lm_head.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(TargetModelError, match=r"missing tensors .*layers\.2\.mlp\.up_proj"):
        TargetModel.load(tmp_path / "broken")
    with pytest.raises(TargetModelError, match=r"holds no lm_head\.weight"):
        TargetHead.load(tmp_path / "broken")
    tensors["lm_head.weight"] = torch.zeros(96, 16)
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(TargetModelError, match=r"lm_head .* has shape \(96, 16\)"):
        TargetHead.load(tmp_path / "broken")
    weights.write_bytes(b"not a checkpoint")
    with pytest.raises(TargetModelError, match="not a readable safetensors file"):
        TargetHead.load(tmp_path / "broken")
    weights.unlink()
    with pytest.raises(TargetModelError, match=r"model\.safetensors"):
        TargetHead.load(tmp_path / "broken")


def test_unknown_architecture(tmp_path: Path) -> None:
    fields = {
        "model_type": "never-heard-of", "hidden_size": 8, "num_hidden_layers": 2,
        "num_attention_heads": 2, "vocab_size": 10,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(TargetModelError, match="cannot load the target"):
        TargetModel.load(tmp_path)


def test_half_precision(target_folder: Folder) -> None:
    target = TargetModel.load(target_folder("qwen3"), "bfloat16")
    assert target.dtype == torch.bfloat16
    assert target.hidden_states(tokens(1, 5), None, IDS).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="int8"):
        TargetModel.load(target_folder("qwen3"), "int8")
