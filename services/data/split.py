"""Held-out prompts, chosen by content hash before anything is generated.

The choice depends on the contents alone: the contents whose salted hash is smallest are held out.
So neither the order of the rows nor the number of repeats matters, a repeat of a held-out
conversation never trains, and a longer file of the same kind keeps most of the choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.data.prompts import PromptRow
from shared.errors import DataError


@dataclass(frozen=True)
class PromptSplit:
    """`training` keeps file order and repeats; `held_out` has each content once."""

    training: list[PromptRow]
    held_out: list[PromptRow]


def held_out_contents(contents: Iterable[str], *, share: float, at_most: int) -> frozenset[str]:
    """Content hashes to hold out: round(share * distinct), at most `at_most`."""
    distinct = set(contents)
    count = min(at_most, round(share * len(distinct)))
    return frozenset(sorted(distinct, key=_rank)[:count])


def split_prompts(rows: Sequence[PromptRow], *, share: float, at_most: int) -> PromptSplit:
    """Split by content; DataError when nothing is left to train on."""
    chosen = held_out_contents((row.sha256 for row in rows), share=share, at_most=at_most)
    training = [row for row in rows if row.sha256 not in chosen]
    held_out = [row for row in rows if row.sha256 in chosen and row.occurrence == 0]
    if not training:
        raise DataError(
            f"data.held_out_share {share} and data.max_held_out {at_most} hold out all "
            f"{len(held_out)} prompts; lower one of them or give more prompts"
        )
    return PromptSplit(training, held_out)


def _rank(content: str) -> bytes:
    return hashlib.sha256(f"held out: {content}".encode()).digest()
