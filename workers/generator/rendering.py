"""Prompts to ids, and the prompts that no engine can answer."""

from __future__ import annotations

from dataclasses import dataclass

from services.data.prompts import PromptRow
from services.data.tokenizer import TargetTokenizer
from shared.errors import DataError


@dataclass(frozen=True)
class Renderer:
    """Rendering for one run.

    `max_prompt_tokens` is what leaves room for an answer, both in the target's context and in a
    training sample.
    """

    tokenizer: TargetTokenizer
    thinking: bool | None
    max_prompt_tokens: int

    def render(self, row: PromptRow) -> list[int]:
        """DataError for a prompt that the template refuses or that leaves no room."""
        ids = self.tokenizer.render(row.messages, thinking=self.thinking, tools=row.tools)
        if len(ids) > self.max_prompt_tokens:
            raise DataError(
                f"the prompt has {len(ids)} tokens, which leaves no room for an answer: at most "
                f"{self.max_prompt_tokens} fit (batcher.max_length, and the target's context)"
            )
        return ids
