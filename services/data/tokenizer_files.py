"""Facts about a target's tokenizer, read from its files without transformers.

The control plane checks a run with them and the batcher's gates use them; both must not load torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from shared.errors import TargetModelError

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True)
class TokenizerFacts:
    """What gates and checks need.

    `sha256` covers vocabulary and merges (tokenizer.json), `template_sha256` the chat template.
    The think ids are None when the tokenizer does not have them as single tokens. `special_texts`
    are the texts of all added tokens, which count as scaffold in an answer.
    """

    sha256: str
    template_sha256: str
    num_ids: int
    think_open_id: int | None
    think_close_id: int | None
    special_texts: tuple[str, ...]


def read_tokenizer_facts(folder: Path) -> TokenizerFacts:
    """TargetModelError when tokenizer or chat template is missing or unreadable."""
    if not folder.is_dir():
        raise TargetModelError(f"target folder {folder} does not exist; check target.path")
    tokenizer, sha256 = _read_tokenizer(folder)
    template = chat_template(folder)
    added = tokenizer.get_added_tokens_decoder()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return TokenizerFacts(
        sha256=sha256,
        template_sha256=hashlib.sha256(template.encode()).hexdigest(),
        num_ids=max(vocabulary.values(), default=-1) + 1,
        think_open_id=vocabulary.get(THINK_OPEN),
        think_close_id=vocabulary.get(THINK_CLOSE),
        special_texts=tuple(sorted(token.content for token in added.values())),
    )


def read_tokenizer(folder: Path) -> Tokenizer:
    """The fast tokenizer itself, without transformers; TargetModelError like above."""
    return _read_tokenizer(folder)[0]


def _read_tokenizer(folder: Path) -> tuple[Tokenizer, str]:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TargetModelError(
            f"target folder {folder} has no tokenizer (tokenizer.json is missing); save the "
            "target's fast tokenizer into it"
        )
    data = path.read_bytes()
    try:
        return Tokenizer.from_str(data.decode("utf-8")), hashlib.sha256(data).hexdigest()
    except Exception as error:
        raise TargetModelError(f"{path} is not a tokenizer: {error}") from error


def chat_template(folder: Path) -> str:
    """The folder's chat template; TargetModelError when it has none."""
    for name in _TEMPLATE_FILES:
        path = folder / name
        if path.is_file():
            text = _read_text(path)
            return str(_json(path, text).get("chat_template")) if name.endswith("json") else text
    path = folder / "tokenizer_config.json"
    if path.is_file():
        template = _json(path, _read_text(path)).get("chat_template")
        if isinstance(template, list):  # several named templates
            named = {item.get("name"): item.get("template") for item in template}
            template = named.get("default")
        if isinstance(template, str) and template:
            return template
    raise TargetModelError(
        f"target folder {folder} has no chat template (chat_template.jinja, or 'chat_template' in "
        "tokenizer_config.json); use the instruction-tuned model, or add the template file"
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TargetModelError(f"{path} is not UTF-8: {error}") from error


def _json(path: Path, text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise TargetModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(tree, dict):
        raise TargetModelError(f"{path} does not hold a JSON object")
    return tree
