"""The two matrices of the target that the drafter shares: embedding and lm_head.

A trainer needs these and none of the target's layers, so they are read straight from the target's
safetensors files. They are frozen: no gradient, and never part of an exported drafter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.dflash.target_shape import TargetShape
from shared.errors import TargetModelError

# Multimodal checkpoints also hold a vision tower and extra prediction layers under these names.
_OTHER_PARTS = ("visual", "vision", "mtp")


@dataclass(frozen=True)
class TargetHead:
    """embedding and lm_head, [V, H] each; one and the same tensor when the target ties them."""

    embedding: Tensor
    lm_head: Tensor

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings [..., H] of token ids [...]."""
        return F.embedding(ids, self.embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., H], in their dtype."""
        return hidden @ self.lm_head.T

    @property
    def tied(self) -> bool:
        return self.embedding is self.lm_head

    @classmethod
    def load(
        cls, folder: Path | str, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> TargetHead:
        """From a target folder in the Hugging Face layout.

        Raises TargetModelError when the folder, its config.json or one of the matrices is missing
        or of another shape than config.json says.
        """
        folder = Path(folder)
        shape = TargetShape.read(folder)
        files = _tensor_files(folder)
        embedding = _read(files, "embed_tokens.weight", folder)
        if embedding is None:
            raise TargetModelError(f"{folder} holds no tensor named ...embed_tokens.weight")
        lm_head = _read(files, "lm_head.weight", folder)
        if lm_head is None and not _tied(folder):
            raise TargetModelError(
                f"{folder} holds no lm_head.weight and its config.json does not tie the embeddings"
            )
        expected = (shape.vocab_size, shape.hidden_size)
        for name, tensor in (("embed_tokens", embedding), ("lm_head", lm_head)):
            if tensor is not None and tuple(tensor.shape) != expected:
                raise TargetModelError(
                    f"{name} in {folder} has shape {tuple(tensor.shape)}; config.json says "
                    f"{expected}"
                )
        embedding = embedding.to(device, dtype)
        return cls(embedding, embedding if lm_head is None else lm_head.to(device, dtype))


def _tied(folder: Path) -> bool:
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    nested = fields.get("text_config") or {}
    return bool(fields.get("tie_word_embeddings", nested.get("tie_word_embeddings", False)))


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Tensor name -> file, from the index of a sharded checkpoint or the single file."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in weight_map.items()}
    single = folder / "model.safetensors"
    if not single.exists():
        raise TargetModelError(
            f"{folder} holds neither model.safetensors nor model.safetensors.index.json; convert "
            "the target's weights to safetensors"
        )
    try:
        with safe_open(single, framework="pt") as reader:
            return dict.fromkeys(reader.keys(), single)
    except SafetensorError as error:
        raise TargetModelError(f"{single} is not a readable safetensors file: {error}") from None


def _read(files: dict[str, Path], suffix: str, folder: Path) -> Tensor | None:
    names = [
        name
        for name in files
        if (name == suffix or name.endswith(f".{suffix}"))
        and not any(part in name.split(".") for part in _OTHER_PARTS)
    ]
    if not names:
        return None
    if len(names) > 1:
        raise TargetModelError(f"{folder} holds several tensors named {suffix}: {sorted(names)}")
    try:
        with safe_open(files[names[0]], framework="pt") as reader:
            return reader.get_tensor(names[0])
    except (OSError, SafetensorError) as error:
        raise TargetModelError(f"cannot read {names[0]} from {files[names[0]]}: {error}") from None
