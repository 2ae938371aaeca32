"""Turn a GGUF file into a target folder: `python -m services.target_models.import_gguf SOURCE OUT`.

    GGUF -> config without its quantisation -> empty model -> dequantised weights -> safetensors

SOURCE is a file, or the name of an installed Python package that ships one. transformers reads a
GGUF but keeps the weights quantised, which is slow and cannot be saved; so the model class is
built from the plain configuration and takes the dequantised state dict. OUT appears whole or not at
all, after it was loaded again and gave finite logits.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from services.target_models.mask_token import mask_token_id_of
from shared.errors import ConflictError, MeshError, TargetModelError

logger = logging.getLogger(__name__)


def find_gguf(source: str) -> Path:
    """The GGUF file that `source` means: a path, or the one file of an installed package.

    A package goes by its name in the registry or by the name it is imported by. Raises
    TargetModelError when there is no such file, or more than one.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return path
    files = sorted(_shipped_by_distribution(source) or _shipped_by_module(source))
    if len(files) == 1:
        return files[0]
    if files:
        raise TargetModelError(
            f"the package {source!r} ships {len(files)} GGUF files: name one of "
            f"{', '.join(map(str, files))}"
        )
    raise TargetModelError(
        f"{source!r} is neither a GGUF file nor an installed package that ships one; "
        "give the file's path, or install the package first"
    )


def _shipped_by_distribution(name: str) -> set[Path]:
    try:
        files = importlib.metadata.distribution(name).files or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return set()
    found = {Path(str(file.locate())) for file in files if file.suffix == ".gguf"}
    return {path for path in found if path.is_file()}


def _shipped_by_module(name: str) -> set[Path]:
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    roots = (spec.submodule_search_locations if spec else None) or []
    return {file for root in roots for file in Path(root).rglob("*.gguf")}


def import_gguf(source: Path, folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write the target folder.

    Raises ConflictError when `folder` exists, TargetModelError when the file cannot be read, has
    no chat template, or gives logits that are not finite.
    """
    if folder.exists():
        raise ConflictError(f"{folder} exists: name a new folder, or remove it first")
    if any(importlib.util.find_spec(name) is None for name in ("gguf", "accelerate")):
        raise TargetModelError("reading GGUF needs the extra: pip install 'dflash-mesh[gguf]'")
    where, name = str(source.parent), source.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
        loaded: Any = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=dtype)
        config = AutoConfig.from_pretrained(where, gguf_file=name)
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise TargetModelError(f"{source} cannot be read as GGUF: {error}") from error
    if not tokenizer.chat_template:
        raise TargetModelError(f"{source} has no chat template; a target needs one")
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    state = {key: _plain(tensor, dtype) for key, tensor in loaded.state_dict().items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    lost = [key for key in missing if key != "lm_head.weight" or not config.tie_word_embeddings]
    if lost or unexpected:
        raise TargetModelError(
            f"{source} does not fit its own configuration: missing {lost[:5]}, "
            f"unexpected {list(unexpected)[:5]}"
        )
    model.tie_weights()
    _align(tokenizer, config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    partial.chmod(0o755)
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        check_folder(partial, model)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _align(tokenizer: Any, config: Any) -> None:
    """Take beginning and end of text and the context length from the model: a GGUF may differ."""
    for name in ("bos", "eos"):
        token_id = getattr(config, f"{name}_token_id", None)
        if isinstance(token_id, int):
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token_id))
    tokenizer.model_max_length = config.max_position_embeddings


def check_folder(folder: Path, model: Any) -> None:
    """Load the folder again: its logits must be finite and those of `model`."""
    again: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype)
    ids = torch.arange(16).unsqueeze(0)
    with torch.inference_mode():
        expected, found = model(ids).logits, again(ids).logits
    if not torch.isfinite(found).all() or not torch.allclose(expected, found, atol=1e-4):
        raise TargetModelError(f"{folder} does not give the logits of the model it was made from")


def _plain(tensor: Any, dtype: torch.dtype) -> torch.Tensor:
    """An ordinary tensor of a state dict entry that may be kept quantised."""
    value = tensor.dequantize() if hasattr(tensor, "quant_type") else tensor
    plain: torch.Tensor = value.as_subclass(torch.Tensor).to(dtype)
    return plain


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="dflash-mesh target import-gguf", description=__doc__)
    parser.add_argument("source", help="GGUF file, or an installed package that ships one")
    parser.add_argument("folder", type=Path, help="target folder to make")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        source = find_gguf(given.source)
        import_gguf(source, given.folder)
    except MeshError as error:
        logger.error("error: %s", error)
        return 1
    logger.info("%s: target folder made from %s", given.folder, source)
    try:
        logger.info("mask token: %d", mask_token_id_of(given.folder))
    except TargetModelError as error:
        logger.warning("the folder is usable, but a run has to name a mask token: %s", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
