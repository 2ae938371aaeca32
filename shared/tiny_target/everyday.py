"""Exercises from daily life: units, shopping, shared things, rectangles."""

from __future__ import annotations

import random

from shared.tiny_target.exercise import NAMES, THINGS, Exercise, amount, phrase, two_people

_UNITS = (
    ("metres", "centimetres", 100, 40),
    ("kilometres", "metres", 1000, 20),
    ("kilograms", "grams", 1000, 20),
    ("litres", "millilitres", 1000, 20),
    ("hours", "minutes", 60, 24),
    ("minutes", "seconds", 60, 60),
    ("weeks", "days", 7, 60),
    ("feet", "inches", 12, 40),
    ("days", "hours", 24, 20),
)
_GOODS = ("pen", "book", "cake", "cup", "ball", "lamp", "hat", "toy", "plate", "ticket")


def to_small_unit(rng: random.Random) -> Exercise:
    """A length, weight, volume or time of two units, expressed in the smaller one."""
    large, small, factor, most = rng.choice(_UNITS)
    count, extra = rng.randint(2, most), rng.randint(1, factor - 1)
    both = f"{amount(count, large)} and {amount(extra, small)}"
    question = phrase(
        rng,
        (
            "How many {small} are {both}?",
            "Convert {both} to {small}.",
            "Write {both} in {small}.",
            "Express {both} in {small} only.",
        ),
        small=small,
        both=both,
    )
    whole = count * factor
    answer = f"{whole + extra} {small}"
    steps = (
        f"Every {amount(1, large)[2:]} has {factor} {small}.",
        f"{count} {large} are {count} x {factor} = {whole} {small}.",
        f"Add the {amount(extra, small)}: {whole} + {extra} = {whole + extra}.",
    )
    return Exercise(f"{both} in {small}", question, steps, f"{both} are {answer}.", answer)


def to_large_unit(rng: random.Random) -> Exercise:
    """An amount in a small unit, split into the large unit and what is left."""
    large, small, factor, most = rng.choice(_UNITS)
    given = rng.randint(2 * factor, min(most, 20) * factor + factor - 1)
    question = phrase(
        rng,
        (
            "Split {given} {small} into {large} and {small}.",
            "How many {large} and {small} are {given} {small}?",
            "Write {given} {small} with {large} and {small}.",
            "Convert {given} {small} to {large} and {small}.",
        ),
        small=small,
        large=large,
        given=given,
    )
    count, rest = divmod(given, factor)
    answer = f"{amount(count, large)} and {amount(rest, small)}"
    steps = (
        f"Every {amount(1, large)[2:]} has {factor} {small}.",
        f"The most that fits into {given}: {count} x {factor} = {count * factor}.",
        f"What is left: {given} - {count * factor} = {rest}.",
    )
    return Exercise(
        f"{given} {small} in {large}", question, steps, f"{given} {small} are {answer}.", answer
    )


def shopping(rng: random.Random) -> Exercise:
    """Several goods of one price, paid with a round sum: the change."""
    goods, price, count = rng.choice(_GOODS), rng.randint(3, 49), rng.randint(2, 9)
    cost = price * count
    paid = rng.choice([note for note in (20, 50, 100, 200, 500) if note > cost])
    question = phrase(
        rng,
        (
            "One {goods} costs {price} euros. {person} buys {count} and pays with {paid} euros. "
            "How much change is that?",
            "{person} pays {paid} euros for {count} {goods}s at {price} euros each. "
            "What is the change?",
            "{person} has {paid} euros and buys {count} {goods}s for {price} euros each. "
            "How much is left?",
        ),
        goods=goods,
        price=price,
        person=rng.choice(NAMES),
        count=count,
        paid=paid,
    )
    steps = (
        f"The price of one {goods} is {price} euros.",
        f"The price of {count} {goods}s is {price} x {count} = {cost} euros.",
        f"Take that from the {paid} euros: {paid} - {cost} = {paid - cost}.",
    )
    answer = amount(paid - cost, "euros")
    answer_text = f"{count} {goods}s cost {cost} euros and the change is {answer}."
    return Exercise(f"{paid} - {count} x {price}", question, steps, answer_text, answer)


def story(rng: random.Random) -> Exercise:
    """A person has, gets and gives things away: three amounts, two or three changes."""
    person, friend = two_people(rng)
    things, now = rng.choice(THINGS), rng.randint(12, 90)
    sentences, steps, key = [], [], f"story {now}"
    question_start = phrase(
        rng, ("{p} has {n} {t}.", "{p} owns {n} {t}.", "There are {n} {t} in {p}'s box."),
        p=person, n=now, t=things,
    )  # fmt: skip
    steps.append(f"At the start {person} has {now} {things}.")
    for _ in range(rng.randint(2, 3)):
        if now > 12 and rng.random() < 0.5:
            amount = rng.randint(3, now - 5)
            verb = rng.choice((f"gives {amount} to {friend}", f"loses {amount}", f"sells {amount}"))
            steps.append(f"{person} {verb}: {now} - {amount} = {now - amount}.")
            key, now = f"{key} - {amount}", now - amount
        else:
            amount = rng.randint(3, 60)
            verb = rng.choice((f"gets {amount} from {friend}", f"finds {amount}", f"buys {amount}"))
            steps.append(f"{person} {verb}: {now} + {amount} = {now + amount}.")
            key, now = f"{key} + {amount}", now + amount
        sentences.append(f"Then {person} {verb}.")
    steps.append(f"At the end {person} has {now} {things}.")
    ask = phrase(
        rng, ("How many {t} does {p} have now?", "How many {t} are there in the end?"),
        t=things, p=person,
    )  # fmt: skip
    question = " ".join((question_start, *sentences, ask))
    answer = f"{now} {things}"
    return Exercise(key, question, tuple(steps), f"{person} has {answer}.", answer)


def rectangle(rng: random.Random) -> Exercise:
    """Perimeter or area of a rectangle with whole sides."""
    thing = rng.choice(("rectangle", "garden", "hall", "field", "park"))
    a, b = rng.randint(10, 99), rng.randint(2, 9)
    if rng.random() < 0.5:
        b += rng.randint(0, 90)
        subject = f"{thing} {a} metres long and {b} metres wide"
        question = phrase(
            rng,
            (
                "What is the perimeter of a {subject}?",
                "A fence goes around a {subject}. How long is the fence?",
            ),
            subject=subject,
        )
        key, answer = f"perimeter {a} {b}", f"{2 * (a + b)} metres"
        steps = (
            f"The {thing} has two sides of {a} metres and two sides of {b} metres.",
            f"One of each: {a} + {b} = {a + b}.",
            f"Twice that: {a + b} x 2 = {2 * (a + b)}.",
        )
        answer_text = f"The {thing} of {a} by {b} metres has a perimeter of {answer}."
    else:
        subject = f"{thing} {a} metres long and {b} metres wide"
        question = phrase(
            rng,
            ("What is the area of a {subject}?", "How many square metres has a {subject}?"),
            subject=subject,
        )
        key, answer = f"area {a} {b}", f"{a * b} square metres"
        steps = (
            f"The area of the {thing} is its length times its width.",
            f"The length is {a} metres and the width is {b} metres.",
            f"Length times width: {a} x {b} = {a * b}.",
        )
        answer_text = f"The {thing} of {a} by {b} metres has an area of {answer}."
    return Exercise(key, question, steps, answer_text, answer)
