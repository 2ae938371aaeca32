"""The prompts of a run, from its configuration: read, checked and split.

Generator, evaluator and the check before a run all call `load_split`, so they agree on which
prompts train and which are held out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from services.builtin import is_builtin_prompts, prompt_rows
from services.data.prompts import (
    BadRow,
    PromptRow,
    PromptSet,
    collect_prompts,
    iter_prompts,
    number_rows,
)
from services.data.split import PromptSplit, split_prompts
from shared.config import RunConfig
from shared.errors import DataError


def iter_run_prompts(config: RunConfig) -> Iterator[PromptRow | BadRow]:
    """Rows of `data.prompts` in order, at most `data.num_prompts` good ones."""
    prompts, limit = config.data.prompts, config.data.num_prompts
    if prompts is None:
        raise DataError("data.prompts is not set: name a JSONL file, or 'builtin:tiny'")
    if is_builtin_prompts(prompts):
        yield from number_rows(prompt_rows(limit, config.seed))
    else:
        yield from iter_prompts(_absolute(prompts), limit=limit)


def load_prompts(config: RunConfig) -> PromptSet:
    """All rows of the run; DataError as `data.bad_rows` asks."""
    prompts = str(config.data.prompts)
    return collect_prompts(
        iter_run_prompts(config),
        source=prompts if is_builtin_prompts(prompts) else str(_absolute(prompts)),
        bad_rows=config.data.bad_rows,
    )


def split_run_prompts(config: RunConfig, prompts: PromptSet) -> PromptSplit:
    """The run's training and held-out prompts."""
    return split_prompts(
        prompts.rows, share=config.data.held_out_share, at_most=config.data.max_held_out
    )


def load_split(config: RunConfig) -> PromptSplit:
    """Read and split in one call."""
    return split_run_prompts(config, load_prompts(config))


def _absolute(prompts: str) -> Path:
    """So that a message about the file says what a relative path counts from."""
    return Path(prompts).expanduser().absolute()
