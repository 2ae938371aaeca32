"""Problems for the tiny target: drawn from a seed, worked out, recognisable, and scored.

Data flow: seed -> `random.Random` -> a kind (module `exercise`) -> `Problem`. Invariants:

- The same seed, count, portion and kinds give the same problems on every machine and with every
  version of Python.
- `Problem.id` is a hash of the content, not of its wording, and no list contains an id twice.
- Every problem lies in one of two portions by its id. The shipped target was trained on `training`
  alone, so a `fresh` problem is one it has never seen in any wording.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from shared.tiny_target import arithmetic, calendar_time, everyday, lists
from shared.tiny_target.exercise import Kind

Portion = Literal["fresh", "training"]

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"

KINDS: dict[str, Kind] = {
    "addition": arithmetic.addition,
    "subtraction": arithmetic.subtraction,
    "multiplication": arithmetic.multiplication,
    "division": arithmetic.division,
    "running_sum": arithmetic.running_sum,
    "series": arithmetic.series,
    "weekday": calendar_time.weekday,
    "date": calendar_time.date,
    "arrival": calendar_time.arrival,
    "time_between": calendar_time.time_between,
    "to_small_unit": everyday.to_small_unit,
    "to_large_unit": everyday.to_large_unit,
    "shopping": everyday.shopping,
    "story": everyday.story,
    "rectangle": everyday.rectangle,
    "sorting": lists.sorting,
    "counting": lists.counting,
    "spread": lists.spread,
}

_FRESH_SHARE = 64  # of 256: a quarter of all problems is kept from the target's training
_DRAWS_PER_PROBLEM = 200


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem with its gold answer.

    `messages` are OpenAI chat messages (one user message). `thinking` is the worked solution
    without the think tags, `answer_text` the sentence shown to the reader, `answer` the part that
    counts.
    """

    id: str
    kind: str
    messages: tuple[dict[str, str], ...]
    thinking: str
    answer_text: str
    answer: str

    @property
    def question(self) -> str:
        """The text of the user message."""
        return self.messages[-1]["content"]

    def gold(self, *, thinking: bool = True) -> str:
        """The assistant's text: with the worked solution in think tags, or the answer alone."""
        if not thinking:
            return self.answer_text
        return f"{THINK_OPEN}\n{self.thinking}\n{THINK_CLOSE}\n\n{self.answer_text}"


def problem_id(kind: str, key: str) -> str:
    """The id of the problem of this kind and content: equal for every wording of it."""
    return f"{kind}-{hashlib.sha256(f'{kind}: {key}'.encode()).hexdigest()[:16]}"


def portion_of(name: str) -> Portion:
    """The portion that the problem of this id belongs to."""
    return "fresh" if int(name[-2:], 16) < _FRESH_SHARE else "training"


def draw_problems(
    seed: int, *, portion: Portion, kinds: Sequence[str] = tuple(KINDS)
) -> Iterator[Problem]:
    """Problems of a portion without end, `kinds` equally often; a problem may come again."""
    rng = random.Random(f"tiny target problems {seed}")
    names = list(kinds)
    while True:
        rng.shuffle(names)
        for kind in names:
            yield _draw(rng, kind, portion)


def _draw(rng: random.Random, kind: str, portion: Portion) -> Problem:
    while True:
        exercise = KINDS[kind](rng)
        name = problem_id(kind, exercise.key)
        if portion_of(name) == portion:
            return Problem(
                id=name,
                kind=kind,
                messages=({"role": "user", "content": exercise.question},),
                thinking="\n".join(exercise.steps),
                answer_text=exercise.answer_text,
                answer=exercise.answer,
            )


def make_problems(
    seed: int, count: int, *, portion: Portion = "fresh", kinds: Sequence[str] = tuple(KINDS)
) -> list[Problem]:
    """`count` different problems, determined by the seed; by default none the target has seen.

    A longer list of the same seed, portion and kinds begins with the shorter one.

    Raises:
        ValueError: if `count` is negative, or more than the kinds can supply without repeating, or
            if a kind is unknown.
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or not kinds:
        raise ValueError(f"unknown kinds {unknown}: choose some of {', '.join(KINDS)}")
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    found: dict[str, Problem] = {}
    questions: set[str] = set()
    stream = draw_problems(seed, portion=portion, kinds=kinds)
    for _ in range(_DRAWS_PER_PROBLEM * count):
        if len(found) == count:
            break
        problem = next(stream)
        if problem.id not in found and problem.question not in questions:
            found[problem.id] = problem
            questions.add(problem.question)
    if len(found) < count:
        raise ValueError(
            f"only {len(found)} different problems came up in {_DRAWS_PER_PROBLEM * count} draws, "
            f"{count} were asked for: ask for fewer"
        )
    return list(found.values())


def visible_text(generated_text: str) -> str | None:
    """What a reader sees of a generated answer: the text after the thinking, without line breaks.

    None if the thinking was opened and never closed.
    """
    text = generated_text
    if THINK_CLOSE in text:
        text = text.rpartition(THINK_CLOSE)[2]
    elif THINK_OPEN in text:
        return None
    for token in ("<|im_end|>", "<|endoftext|>"):
        text = text.partition(token)[0]
    return " ".join(text.split())


def score(problem: Problem, generated_text: str) -> bool:
    """Whether the generated answer ends with the right result.

    The thinking, if there is any, must be closed; what it says is not judged. A result that is only
    the tail of a longer number or list ("145" for "45", "3, 5, 7" for "5, 7") does not count.
    """
    visible = visible_text(generated_text)
    if visible is None:
        return False
    shown = visible.removesuffix(".").rstrip()
    if not shown.endswith(problem.answer):
        return False
    before = shown[: len(shown) - len(problem.answer)]
    if not before:
        return True
    if before[-1].isalnum() or before[-1] in ".,:-":
        return False
    return not ("," in problem.answer and before.rstrip().endswith(","))
