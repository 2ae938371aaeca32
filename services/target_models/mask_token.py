"""The mask token of a target folder, read from its tokenizer files.

    drafter.mask_token_id -> tokenizer's mask token -> first embedding row that no token uses

Only the fast tokenizer's own library is used, so that roles without torch can ask too.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer

from shared.dflash.target_shape import TargetShape, choose_mask_token_id
from shared.errors import TargetModelError


def mask_token_id_of(folder: Path, explicit: int | None = None) -> int:
    """The id that stands for 'not drafted yet' with the target in `folder`.

    explicit: the configured id, which wins. Raises TargetModelError when the folder has no
    tokenizer.json, or neither a mask token nor a free embedding row.
    """
    shape = TargetShape.read(folder)
    tokenizer = _read_tokenizer(folder)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    mask_token = _mask_token(folder)
    return choose_mask_token_id(
        vocab_size=shape.vocab_size,
        tokenizer_size=max(vocabulary.values(), default=-1) + 1,
        explicit=explicit,
        tokenizer_mask_id=None if mask_token is None else vocabulary.get(mask_token),
    )


def _read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TargetModelError(
            f"{path} does not exist; save the target's fast tokenizer into its folder"
        )
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TargetModelError(f"{path} is not a tokenizer: {error}") from error


def _mask_token(folder: Path) -> str | None:
    """The text of the mask token that the folder's settings name, if any."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / name
        if not path.is_file():
            continue
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise TargetModelError(f"{path} is not valid JSON: {error}") from error
        token = fields.get("mask_token")
        if isinstance(token, dict):
            token = token.get("content")
        if token is not None:
            return str(token)
    return None
