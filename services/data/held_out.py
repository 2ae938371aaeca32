"""What an evaluation needs of the prompts, and what to change when it does not get it.

Checked when a run is submitted: a run that trains for days must not fail at its evaluation for a
number that was known before it began.
"""

from __future__ import annotations

import math
from typing import NoReturn

from shared.config import RunConfig
from shared.errors import DataError, FieldError


def require_prompts(config: RunConfig) -> None:
    """DataError when `data.prompts`, from which prompts are held out, is not set."""
    if config.data.prompts is None:
        raise DataError(
            "an evaluation needs held-out prompts, but data.prompts is not set: name the prompts "
            "file of the run that made data.dataset, or train without an evaluation",
            errors=[FieldError("data.prompts", "not set, but the evaluation needs it"), _stages()],
        )


def refuse(config: RunConfig, *, num_different: int) -> NoReturn:
    """DataError for prompts of which none is held out; it names remedies that are possible."""
    data = config.data
    prompts = f"{num_different} different prompt{'' if num_different == 1 else 's'}"
    if data.max_held_out == 0:
        errors = [FieldError("data.max_held_out", "is 0: raise it to 1 or more")]
    elif data.held_out_share == 0:
        errors = [FieldError("data.held_out_share", "is 0: raise it")]
    else:
        errors = [
            FieldError(
                "data.prompts",
                f"has {prompts} (after data.num_prompts); at data.held_out_share "
                f"{data.held_out_share:g} one is held out of {num_needed(data.held_out_share)} or "
                "more: give more prompts",
            )
        ]
    if num_different < 2 and len(errors) == 1 and errors[0].field != "data.prompts":
        errors.append(FieldError("data.prompts", f"has {prompts}: give more prompts"))
    elif num_different >= 2 and errors[0].field == "data.prompts":
        share = math.ceil(1000 / num_different) / 1000
        errors.append(FieldError("data.held_out_share", f"or raise it to {share:g}"))
    raise DataError(
        f"the run cannot be evaluated: of {prompts} none is held out",
        errors=[*errors, _stages()],
    )


def num_needed(share: float) -> int:
    """The fewest different prompts of which a share > 0 holds one out and leaves one to train."""
    count = max(2, math.floor(0.5 / share))
    while round(share * count) < 1:
        count += 1
    return count


def _stages() -> FieldError:
    return FieldError(
        "stages",
        "or leave 'evaluate' out (and evaluate.every_checkpoints at 0) to train without an "
        "evaluation",
    )
