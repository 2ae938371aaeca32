"""Prompt ids as a text that a server turns into the very same ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.servers.base import PromptRefused


class TextCodec(Protocol):
    """What is needed of the target's tokenizer."""

    vocab_size: int
    eos_ids: tuple[int, ...]

    @property
    def eos_id(self) -> int:
        """The id that ends an answer."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens kept."""


def exact_text(prompt_ids: Sequence[int], codec: TextCodec) -> str:
    """The text that tokenises to `prompt_ids` the way servers do, special tokens added in front.

    PromptRefused when there is none: the answer would be to another prompt.
    """
    ids = list(prompt_ids)
    text = codec.decode(ids)
    if codec.encode(text, add_special_tokens=True) == ids:
        return text
    # The template has written what the server puts in front by itself.
    without = codec.decode(ids[1:])
    if codec.encode(without, add_special_tokens=True) == ids:
        return without
    raise PromptRefused(
        "the prompt's token ids cannot be sent as text: the server would read other ids out of it; "
        "use a server that takes token ids (vLLM, SGLang)"
    )
