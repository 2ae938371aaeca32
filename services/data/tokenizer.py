"""The target's tokenizer: conversations to prompt ids, generated ids to text.

A thin layer over transformers' AutoTokenizer that insists on a chat template and knows the ids at
which an answer ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from services.data.tokenizer_files import read_tokenizer_facts
from shared.dflash.target_shape import TargetShape
from shared.errors import DataError, TargetModelError


class TargetTokenizer:
    """Rendering and decoding for one target folder."""

    def __init__(self, folder: Path, tokenizer: Any, *, vocab_size: int) -> None:
        self.folder = folder
        self.vocab_size = vocab_size  # rows of the embedding; every id lies below
        self._tokenizer = tokenizer
        # Without the layer around it, which looks at every id in Python.
        self._backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        self.eos_ids = _eos_ids(folder, tokenizer.eos_token_id)

    @classmethod
    def load(cls, folder: Path) -> TargetTokenizer:
        """From a local folder; TargetModelError says what the folder lacks."""
        read_tokenizer_facts(folder)
        shape = TargetShape.read(folder)
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise TargetModelError(f"the tokenizer in {folder} does not load: {error}") from error
        return cls(folder, tokenizer, vocab_size=shape.vocab_size)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        thinking: bool | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Prompt ids of a conversation, ready for the answer; `tools` go to the template.

        `thinking` is handed to the template as enable_thinking; None leaves its default. DataError
        when the template refuses the conversation, TargetModelError for an id without embedding.
        """
        options: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        if tools:
            options["tools"] = list(tools)
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=False, **options
            )
        except Exception as error:
            raise DataError(
                f"the target's chat template refuses the conversation: {error}"
            ) from error
        ids = [int(one) for one in self._tokenizer.encode(text, add_special_tokens=False)]
        if not ids:
            raise DataError("the target's chat template renders the conversation to nothing")
        self.check_ids(ids)
        return ids

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text; special tokens in it count as such."""
        return [
            int(one) for one in self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        ]

    @property
    def eos_id(self) -> int:
        """The id that ends an answer, where an engine does not say which one did."""
        own = self._tokenizer.eos_token_id
        return int(own) if own in self.eos_ids else self.eos_ids[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept."""
        if self._backend is not None:
            return str(self._backend.decode(list(ids), skip_special_tokens=False))
        return str(
            self._tokenizer.decode(
                list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def check_ids(self, ids: Sequence[int]) -> None:
        """TargetModelError when an id has no row in the target's embedding."""
        if max(ids, default=0) >= self.vocab_size or min(ids, default=0) < 0:
            outside = next(one for one in ids if not 0 <= one < self.vocab_size)
            raise TargetModelError(
                f"token id {outside} lies outside the target's vocabulary of {self.vocab_size} "
                f"rows: tokenizer and model in {self.folder} do not belong together"
            )


def _eos_ids(folder: Path, tokenizer_eos: int | None) -> tuple[int, ...]:
    """Ids that end an answer: generation_config.json's, and the tokenizer's own."""
    ids: set[int] = set() if tokenizer_eos is None else {int(tokenizer_eos)}
    path = folder / "generation_config.json"
    if path.is_file():
        try:
            given = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        except (UnicodeDecodeError, json.JSONDecodeError, AttributeError) as error:
            raise TargetModelError(f"{path} is not valid JSON: {error}") from error
        if given is not None:
            ids.update(int(one) for one in (given if isinstance(given, list) else [given]))
    if not ids:
        raise TargetModelError(
            f"target folder {folder} names no end-of-text token (tokenizer_config.json, "
            "generation_config.json): generation could not end"
        )
    return tuple(sorted(ids))
