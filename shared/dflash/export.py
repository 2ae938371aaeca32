"""Writing, checking and reading the folder that inference servers load.

    model -> .NAME.partial/{model.safetensors, config.json} -> check -> reload -> compare -> rename

Servers skip tensors they do not know and do not notice missing ones, so a wrong folder loads and
drafts badly. Therefore every name and shape is checked against the configuration here, on writing
and on reading, and a folder gets its name only after it was loaded again and gave the same logits.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from shared.dflash.config import DrafterConfig
from shared.dflash.layout import BlockLayout
from shared.dflash.model import DFlashDraftModel
from shared.errors import DrafterError, IntegrityError

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
_SAFETENSORS_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_NAMES_SHOWN = 12


def expected_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a drafter: 11 a layer and 3 more."""
    with torch.device("meta"):
        state = DFlashDraftModel(config).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def check_folder(folder: Path | str) -> DrafterConfig:
    """Check configuration, tensor names, shapes and dtypes of a drafter folder without loading it.

    Raises DrafterError naming the missing, extra and misshapen tensors, a dtype that config.json
    does not admit, and files that config.json names but the folder lacks.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DrafterError(f"drafter folder {folder} does not exist")
    config = DrafterConfig.read(folder / CONFIG)
    problems = _auto_map_problems(folder)
    found = _stored_tensors(folder / WEIGHTS)
    expected = expected_shapes(config)
    missing = sorted(set(expected) - set(found))
    extra = sorted(set(found) - set(expected))
    if missing:
        problems.append(f"missing tensors {_names(missing)}")
    if extra:
        problems.append(f"extra tensors {_names(extra)}")
    for name in sorted(set(expected) & set(found)):
        shape, dtype = found[name]
        if shape != expected[name]:
            problems.append(f"{name} has shape {list(shape)} instead of {list(expected[name])}")
        elif dtype != config.dtype:
            problems.append(f"{name} is {dtype} but config.json says {config.dtype}")
    if problems:
        raise DrafterError(f"{folder} is not a usable drafter: " + "; ".join(problems))
    return config


def load_drafter(
    folder: Path | str,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> DFlashDraftModel:
    """Load a checked drafter folder, in evaluation mode. dtype: None keeps the stored one.

    Raises DrafterError as `check_folder` does.
    """
    folder = Path(folder)
    config = check_folder(folder)
    with torch.device("meta"):
        model = DFlashDraftModel(config)
    state = load_file(folder / WEIGHTS)
    model.load_state_dict(state, assign=True)
    return model.to(device=device, dtype=dtype).eval()


def verify_drafter(folder: Path | str, model: DFlashDraftModel | None = None) -> DrafterConfig:
    """Check a folder, load it, and run it; with `model`, compare the logits with the model's.

    Raises DrafterError for a folder that cannot be used, IntegrityError when the loaded drafter
    gives non-finite logits or other logits than `model` in the stored dtype.
    """
    loaded = load_drafter(folder)
    config = loaded.config
    logits = _probe_logits(loaded)
    if not logits.isfinite().all():
        raise IntegrityError(f"the drafter in {folder} gives non-finite logits")
    if model is not None:
        stored = getattr(torch, config.dtype)
        source = copy.deepcopy(model).to(device="cpu", dtype=stored).eval()
        expected = _probe_logits(source)
        if not torch.equal(logits, expected):
            gap = (logits - expected).abs().max().item()
            raise IntegrityError(
                f"the drafter in {folder} does not reproduce the model it was written from: logits "
                f"differ by up to {gap:.3g}"
            )
    return config


def save_drafter(
    folder: Path | str, model: DFlashDraftModel, config: DrafterConfig | None = None
) -> DrafterConfig:
    """Write `model` to `folder`, check, reload and compare it, then give it its name.

    config: what config.json says, where it differs from the model's own (for instance another
    dtype: weights are converted to it). Files of an earlier export there are replaced, others kept.
    Returns the configuration. Raises DrafterError or IntegrityError and leaves `folder` as it was.
    """
    folder = Path(folder)
    config = config or model.config
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.parent / f".{folder.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        dtype = getattr(torch, config.dtype)
        state = {
            name: tensor.detach().to(device="cpu", dtype=dtype).contiguous()
            for name, tensor in model.state_dict().items()
        }
        save_file(state, partial / WEIGHTS, metadata={"format": "pt"})
        text = json.dumps(config.to_dict(), indent=2) + "\n"
        (partial / CONFIG).write_text(text, encoding="utf-8")
        verify_drafter(partial, model)
        for name in (WEIGHTS, CONFIG):
            _sync(partial / name)
        if folder.exists():
            for name in (WEIGHTS, CONFIG):
                (partial / name).replace(folder / name)
        else:
            partial.rename(folder)
        _sync(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return config


def _stored_tensors(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of every tensor in a safetensors file, read from its header."""
    if not path.exists():
        raise DrafterError(f"{path} does not exist; a drafter folder holds {WEIGHTS} and {CONFIG}")
    try:
        with safe_open(path, framework="pt") as reader:
            slices = {name: reader.get_slice(name) for name in reader.keys()}  # noqa: SIM118
            return {
                name: (
                    tuple(one.get_shape()),
                    _SAFETENSORS_DTYPES.get(one.get_dtype(), one.get_dtype()),
                )
                for name, one in slices.items()
            }
    except SafetensorError as error:
        raise DrafterError(f"{path} is not a readable safetensors file: {error}") from None


def _auto_map_problems(folder: Path) -> list[str]:
    fields = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    entries = fields.get("auto_map") or {}
    modules = sorted({str(entry).split("--")[-1].split(".")[0] for entry in entries.values()})
    return [
        f"auto_map names {module}.py, which the folder lacks"
        for module in modules
        if not (folder / f"{module}.py").exists()
    ]


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"


@torch.no_grad()
def _probe_logits(model: DFlashDraftModel) -> Tensor:
    """Logits of fixed random blocks against a fixed random lm_head, float32."""
    config = model.config
    dtype = model.fc.weight.dtype
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    anchors = torch.tensor([[3, 8]])
    layout = BlockLayout.of(
        anchors, torch.ones_like(anchors), seq_len=12, block_size=config.block_size
    )
    embeddings = random(1, layout.num_queries, config.hidden_size)
    hidden = model(embeddings, random(1, 12, config.target_hidden_size), layout)
    return (hidden @ random(64, config.hidden_size).T).float()


def _sync(path: Path) -> None:
    """Force a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
