"""What ships with the package: the names 'builtin:tiny' for a target folder and for prompts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shared.errors import DataError, TargetModelError
from shared.tiny_target import demo_prompts, model_folder

BUILTIN_TINY = "builtin:tiny"
BUILTIN_PREFIX = "builtin:"
DEFAULT_NUM_PROMPTS = 480


def target_folder(path: str) -> Path:
    """The folder of `target.path`, absolute so that a message about it says what a relative one
    counts from; TargetModelError for an unknown built-in name."""
    if path == BUILTIN_TINY:
        return model_folder()
    if path.startswith(BUILTIN_PREFIX):
        raise TargetModelError(
            f"target.path {path!r}: the only built-in target is {BUILTIN_TINY!r}"
        )
    return Path(path).expanduser().absolute()


def is_builtin_prompts(prompts: str) -> bool:
    """Whether `data.prompts` names prompts that ship; DataError for an unknown built-in name."""
    if prompts == BUILTIN_TINY:
        return True
    if prompts.startswith(BUILTIN_PREFIX):
        raise DataError(f"data.prompts {prompts!r}: the only built-in prompts are {BUILTIN_TINY!r}")
    return False


def prompt_rows(num_prompts: int | None, seed: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) pairs of the built-in problems, as a prompts file would hold them."""
    try:
        rows = demo_prompts(num_prompts or DEFAULT_NUM_PROMPTS, seed)
    except ValueError as error:
        raise DataError(f"data.num_prompts: {error}") from error
    yield from enumerate(rows, start=1)
