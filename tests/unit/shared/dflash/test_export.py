"""Exported folders: complete ones round-trip, all others are refused by name."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shared.dflash import export
from shared.dflash.export import check_folder, load_drafter, save_drafter, verify_drafter
from shared.dflash.model import DFlashDraftModel
from shared.errors import DrafterError, IntegrityError

Make = Callable[..., DFlashDraftModel]


@pytest.fixture
def folder(tmp_path: Path, make_drafter: Make) -> Path:
    save_drafter(tmp_path / "drafter", make_drafter())
    return tmp_path / "drafter"


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_tensor_names_and_shapes(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    per_layer = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
        "input_layernorm", "post_attention_layernorm",
    }  # fmt: skip
    wanted = {f"layers.{i}.{name}.weight" for i in range(2) for name in per_layer}
    assert set(tensors) == wanted | {"fc.weight", "hidden_norm.weight", "norm.weight"}
    assert len(tensors) == 11 * 2 + 3
    assert tensors["fc.weight"].shape == (32, 64)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_round_trip(folder: Path, make_drafter: Make) -> None:
    model = make_drafter()
    loaded = load_drafter(folder)
    assert loaded.config == model.config and not loaded.training
    for name, parameter in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter)
    assert verify_drafter(folder, model) == model.config


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stored_in_another_dtype(dtype: str, tmp_path: Path, make_drafter: Make) -> None:
    model = make_drafter()
    config = dataclasses.replace(model.config, dtype=dtype)
    save_drafter(tmp_path / "half", model, config)
    assert json.loads((tmp_path / "half/config.json").read_text())["dtype"] == dtype
    assert load_drafter(tmp_path / "half").fc.weight.dtype == getattr(torch, dtype)
    assert load_drafter(tmp_path / "half", torch.float32).fc.weight.dtype == torch.float32
    assert model.fc.weight.dtype == torch.float32


def test_missing_extra_and_misshapen_tensors_are_all_named(folder: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors["layers.1.mlp.up_proj.weight"], tensors["fc.weight"]
        tensors["lm_head.weight"] = torch.zeros(2, 2)
        tensors["layers.0.self_attn.q_norm.weight"] = torch.zeros(7)

    rewrite(folder, change)
    for refuse in (check_folder, load_drafter, verify_drafter):
        with pytest.raises(DrafterError) as caught:
            refuse(folder)
        text = str(caught.value)
        assert "missing tensors fc.weight, layers.1.mlp.up_proj.weight" in text
        assert "extra tensors lm_head.weight" in text
        assert "layers.0.self_attn.q_norm.weight has shape [7] instead of [8]" in text


def test_prefixed_names_are_refused(folder: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[f"model.{name}"] = tensors.pop(name)

    rewrite(folder, change)
    with pytest.raises(DrafterError, match=r"extra tensors model\.fc\.weight.* and 13 more"):
        load_drafter(folder)


def test_dtype_must_tell_the_truth(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"fc.weight": t["fc.weight"].bfloat16()}))
    with pytest.raises(DrafterError, match=r"fc\.weight is bfloat16 but config\.json says float32"):
        load_drafter(folder)


def test_missing_target_layer_ids_are_refused(folder: Path) -> None:
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    del fields["dflash_config"]["target_layer_ids"]
    path.write_text(json.dumps(fields))
    with pytest.raises(DrafterError, match=r"missing key dflash_config\.target_layer_ids"):
        load_drafter(folder)


def test_auto_map_needs_its_file(folder: Path) -> None:
    path = folder / "config.json"
    fields = {**json.loads(path.read_text()), "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}}
    path.write_text(json.dumps(fields))
    with pytest.raises(DrafterError, match=r"auto_map names dflash\.py"):
        check_folder(folder)
    (folder / "dflash.py").write_text("")
    check_folder(folder)


def test_absent_or_broken_files(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DrafterError, match="does not exist"):
        load_drafter(tmp_path / "nowhere")
    (folder / "model.safetensors").write_bytes(b"truncated")
    with pytest.raises(DrafterError, match="not a readable safetensors file"):
        load_drafter(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DrafterError, match=r"model\.safetensors does not exist"):
        load_drafter(folder)


def test_another_model_or_broken_weights_fail_verification(
    folder: Path, make_drafter: Make
) -> None:
    with pytest.raises(IntegrityError, match="does not reproduce"):
        verify_drafter(folder, make_drafter(seed=2))
    rewrite(folder, lambda t: t["norm.weight"].fill_(float("nan")))
    with pytest.raises(IntegrityError, match="non-finite"):
        verify_drafter(folder)


def test_failed_export_leaves_the_earlier_one(
    folder: Path, make_drafter: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that loses a tensor on its way is noticed before the folder changes."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def lossy(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        tensors["fc.weight"] = tensors["fc.weight"] * 1.01
        save_file(tensors, path, metadata=metadata)

    monkeypatch.setattr(export, "save_file", lossy)
    with pytest.raises(IntegrityError, match="does not reproduce"):
        save_drafter(folder, make_drafter(seed=3))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["drafter"]


def test_export_over_an_earlier_one(folder: Path, make_drafter: Make) -> None:
    (folder / "README.md").write_text("kept")
    save_drafter(folder, make_drafter(seed=3))
    verify_drafter(folder, make_drafter(seed=3))
    assert (folder / "README.md").read_text() == "kept"
