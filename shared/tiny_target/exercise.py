"""What one generated exercise consists of, and the small vocabulary that all kinds share.

A kind (a function in `arithmetic`, `calendar_time`, `everyday` or `lists`) draws the content and
the phrasing of one exercise from a `random.Random` and works it out. Invariants:

- `key` names the content alone. Two exercises that ask for the same calculation in different words
  have the same key, so a split by key never puts one calculation on both sides.
- `steps` and `answer_text` follow from the content and the question: no randomness of their own, so
  that a greedy model can be certain of every token but the results it has to work out.
- `answer_text` ends with `answer` and a full stop.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NAMES = (
    "Anna",
    "Ben",
    "Carla",
    "David",
    "Ella",
    "Finn",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Klara",
    "Leo",
    "Mara",
    "Nils",
    "Olga",
    "Peter",
)
THINGS = (
    "apples",
    "pears",
    "books",
    "coins",
    "stamps",
    "marbles",
    "cards",
    "shells",
    "pencils",
    "stones",
    "tickets",
    "buttons",
)
_IRREGULAR = {"inches": "inch", "feet": "foot"}


@dataclass(frozen=True, slots=True)
class Exercise:
    """One question with its worked solution; see the module for the invariants."""

    key: str
    question: str
    steps: tuple[str, ...]
    answer_text: str
    answer: str


Kind = Callable[[random.Random], Exercise]


def phrase(rng: random.Random, templates: Sequence[str], **values: object) -> str:
    """One of `templates`, drawn at random, with `values` filled in."""
    return rng.choice(templates).format(**values)


def join_words(items: Sequence[object]) -> str:
    """The items separated by a comma and a space."""
    return ", ".join(str(item) for item in items)


def amount(count: int, plural: str) -> str:
    """A count with its noun: "3 hours", "1 hour"."""
    if count == 1:
        return f"1 {_IRREGULAR.get(plural) or plural.removesuffix('s')}"
    return f"{count} {plural}"


def number_of_digits(rng: random.Random, digits: int) -> int:
    """A random number of exactly `digits` digits, without a leading zero."""
    return rng.randint(10 ** (digits - 1), 10**digits - 1)


def two_people(rng: random.Random) -> tuple[str, str]:
    """Two different names."""
    first, second = rng.sample(NAMES, 2)
    return first, second
