"""The prompts an evaluation runs on: held out by content, rendered as the run renders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.data.held_out import require_prompts
from services.data.prompts import PromptRow
from services.data.source import held_out_prompts
from services.data.tokenizer import TargetTokenizer
from shared.config import RunConfig
from shared.errors import DataError
from shared.tiny_target import Problem


@dataclass(frozen=True)
class EvaluationPrompt:
    """token ids of the prompt; problem: what a right answer is, where the row says so."""

    token_ids: list[int]
    problem: Problem | None


def held_out_rows(config: RunConfig) -> list[PromptRow]:
    """The run's held-out prompts. DataError when it holds none out."""
    require_prompts(config)
    rows = held_out_prompts(config)
    if not rows:
        raise DataError(
            f"data.held_out_share {config.data.held_out_share} and data.max_held_out "
            f"{config.data.max_held_out} hold out no prompt of {config.data.prompts}: raise them"
        )
    return rows


def render(
    rows: Sequence[PromptRow], tokenizer: TargetTokenizer, *, thinking: bool | None, room: int
) -> list[EvaluationPrompt]:
    """Rows as token ids; those that leave no room for an answer in `room` tokens are left out.

    DataError when none is left.
    """
    rendered = [
        EvaluationPrompt(
            tokenizer.render(row.messages, thinking=thinking, tools=row.tools), _problem(row)
        )
        for row in rows
    ]
    fitting = [prompt for prompt in rendered if len(prompt.token_ids) < room]
    if not fitting:
        raise DataError(f"every evaluation prompt fills the target's context of {room} tokens")
    return fitting


def _problem(row: PromptRow) -> Problem | None:
    """What scores an answer: rows of the built-in problems carry the right one."""
    answer = row.extra.get("answer")
    if not isinstance(answer, str) or not answer:
        return None
    return Problem(
        id=row.id or row.sha256,
        kind=row.kind or "unknown",
        messages=tuple(row.messages),
        thinking="",
        answer_text="",
        answer=answer,
    )
