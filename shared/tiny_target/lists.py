"""Exercises with lists: sorting numbers, counting words, finding extremes."""

from __future__ import annotations

import random

from shared.tiny_target.exercise import Exercise, amount, join_words, phrase

_WORDS = ("red", "blue", "green", "white", "black", "brown", "pink", "grey")


def sorting(rng: random.Random) -> Exercise:
    """Four to six different numbers below 100, sorted by taking out one at a time."""
    numbers = rng.sample(range(1, 100), rng.randint(4, 6))
    down = rng.random() < 0.5
    question = phrase(
        rng,
        (
            "Sort {numbers} from {order}.",
            "Put {numbers} in order from {order}.",
            "Arrange the numbers {numbers} from {order}.",
            "Write {numbers} again, from {order}.",
        ),
        numbers=join_words(numbers),
        order="large to small" if down else "small to large",
    )
    left = list(numbers)
    word = "largest" if down else "smallest"
    steps = [f"Take out the {word} number until none is left."]
    while len(left) > 1:
        chosen = max(left) if down else min(left)
        steps.append(f"The {word} of {join_words(left)} is {chosen}.")
        left.remove(chosen)
    steps.append(f"The last one is {left[0]}.")
    answer = join_words(sorted(numbers, reverse=down))
    return Exercise(
        f"sort {'down' if down else 'up'} {join_words(numbers)}",
        question,
        tuple(steps),
        f"In order: {answer}.",
        answer,
    )


def counting(rng: random.Random) -> Exercise:
    """How often one word stands in a list of six to ten words."""
    few = rng.sample(_WORDS, 4)
    words = [rng.choice(few) for _ in range(rng.randint(6, 10))]
    wanted = rng.choice(few)
    question = phrase(
        rng,
        (
            "How many times does the word {wanted} occur in {words}?",
            "Count the word {wanted} in this list: {words}.",
            "How often is {wanted} in the list {words}?",
            "In the list {words}, how many are {wanted}?",
        ),
        wanted=wanted,
        words=join_words(words),
    )
    count, lines = 0, []
    for word in words:
        count += word == wanted
        lines.append(f"{word} {count}")
    steps = (
        f"Go through the list and count each {wanted}.",
        f"{join_words(lines)}.",
        f"At the end the count is {count}.",
    )
    answer = amount(count, "times")
    return Exercise(
        f"count {wanted} in {join_words(words)}",
        question,
        steps,
        f"In the list of {len(words)} words {wanted} occurs {answer}.",
        answer,
    )


def spread(rng: random.Random) -> Exercise:
    """The difference between the largest and the smallest of four to seven numbers."""
    numbers = rng.sample(range(3, 100), rng.randint(4, 7))
    question = phrase(
        rng,
        (
            "What is the difference between the largest and the smallest of {numbers}?",
            "How far apart are the largest and the smallest of the numbers {numbers}?",
            "Take the smallest of {numbers} from the largest.",
        ),
        numbers=join_words(numbers),
    )
    low, high = min(numbers), max(numbers)
    steps = (
        f"The numbers are {join_words(numbers)}.",
        f"The largest of them is {high}.",
        f"The smallest of them is {low}.",
        f"The difference: {high} - {low} = {high - low}.",
    )
    return Exercise(
        f"spread {join_words(numbers)}",
        question,
        steps,
        f"From {low} to {high} the difference is {high - low}.",
        str(high - low),
    )
