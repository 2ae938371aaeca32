"""Exercises with whole numbers: sum, difference, product, quotient, running sum, series."""

from __future__ import annotations

import random
from itertools import pairwise

from shared.tiny_target.exercise import Exercise, join_words, number_of_digits, phrase

_COLUMNS = ("ones", "tens", "hundreds", "thousands", "ten thousands")


def _digit(number: int, column: int) -> int:
    return int(number // 10**column % 10)


def addition(rng: random.Random) -> Exercise:
    """Two numbers of two to four digits, added column by column with carries."""
    a = number_of_digits(rng, rng.choice((2, 3, 3, 4)))
    b = number_of_digits(rng, rng.choice((2, 3, 3, 4)))
    question = phrase(
        rng,
        (
            "What is {a} + {b}?",
            "Add {a} and {b}.",
            "Work out the sum of {a} and {b}.",
            "Calculate {a} plus {b}.",
            "How much is {a} + {b}?",
        ),
        a=a,
        b=b,
    )
    steps = [f"Add {a} and {b} column by column, from the right."]
    carry = 0
    for column in range(max(len(str(a)), len(str(b)))):
        x, y = _digit(a, column), _digit(b, column)
        total = x + y + carry
        steps.append(
            f"The {_COLUMNS[column]}: {x} + {y} + {carry} = {total}, "
            f"write {total % 10} and carry {total // 10}."
        )
        carry = total // 10
    if carry:
        steps.append(f"In front comes the last carry, {carry}.")
    steps.append(f"Read the digits from the left: {a + b}.")
    low, high = sorted((a, b))
    return Exercise(f"{low} + {high}", question, tuple(steps), f"{a} + {b} = {a + b}.", str(a + b))


def subtraction(rng: random.Random) -> Exercise:
    """The difference of two numbers of two to four digits, column by column with borrowing."""
    low, high = sorted(number_of_digits(rng, rng.choice((2, 3, 3, 4))) for _ in range(2))
    question = phrase(
        rng,
        (
            "What is {a} - {b}?",
            "Subtract {b} from {a}.",
            "Work out the difference of {a} and {b}.",
            "Calculate {a} minus {b}.",
            "What is left when {b} is taken from {a}?",
        ),
        a=high,
        b=low,
    )
    steps = [f"Take {low} from {high} column by column, from the right."]
    borrowed = 0
    for column in range(len(str(high))):
        x, y = _digit(high, column), _digit(low, column) + borrowed
        if x >= y:
            steps.append(f"The {_COLUMNS[column]}: {x} - {y} = {x - y}, nothing to borrow.")
            borrowed = 0
        else:
            steps.append(
                f"The {_COLUMNS[column]}: {x} is less than {y}, "
                f"borrow 10: {x + 10} - {y} = {x + 10 - y}."
            )
            borrowed = 1
    steps.append(f"Read the digits from the left: {high - low}.")
    answer = str(high - low)
    return Exercise(
        f"{high} - {low}", question, tuple(steps), f"{high} - {low} = {answer}.", answer
    )


def multiplication(rng: random.Random) -> Exercise:
    """A number of two or three digits times one digit, by partial products."""
    a, b = number_of_digits(rng, rng.choice((2, 3, 3))), rng.randint(3, 9)
    question = phrase(
        rng,
        (
            "What is {a} x {b}?",
            "Multiply {a} by {b}.",
            "Work out the product of {a} and {b}.",
            "Calculate {a} times {b}.",
            "How much is {b} x {a}?",
        ),
        a=a,
        b=b,
    )
    parts = [_digit(a, column) * 10**column for column in reversed(range(len(str(a))))]
    parts = [part for part in parts if part]
    steps = [f"Split {a} into {' + '.join(map(str, parts))} and multiply each part by {b}."]
    steps += [f"{part} x {b} = {part * b}." for part in parts]
    total = parts[0] * b
    for part in parts[1:]:
        steps.append(f"Add the parts: {total} + {part * b} = {total + part * b}.")
        total += part * b
    return Exercise(f"{a} x {b}", question, tuple(steps), f"{a} x {b} = {total}.", str(total))


def division(rng: random.Random) -> Exercise:
    """Quotient and remainder of a two- or three-digit number by one digit, tens first."""
    b = rng.randint(3, 9)
    a = rng.randint(10 * b + 1, 100 * b - 1)
    question = phrase(
        rng,
        (
            "Divide {a} by {b} and give the remainder.",
            "How many times does {b} go into {a}, and what is left?",
            "What is {a} : {b} with remainder?",
            "Work out the quotient and the remainder of {a} and {b}.",
        ),
        a=a,
        b=b,
    )
    tens, quotient, remainder = a // b // 10, a // b, a % b
    left = a - tens * 10 * b
    steps = (
        f"Divide {a} by {b}, first the tens.",
        f"{b} x {tens}0 = {tens * 10 * b} is the largest that fits.",
        f"What is left: {a} - {tens * 10 * b} = {left}.",
        f"Now the ones: {b} x {quotient % 10} = {b * (quotient % 10)} is the largest that fits.",
        f"What is left: {left} - {b * (quotient % 10)} = {remainder}.",
    )
    answer = f"{quotient} remainder {remainder}"
    return Exercise(f"{a} : {b}", question, steps, f"{a} : {b} = {answer}.", answer)


def running_sum(rng: random.Random) -> Exercise:
    """The sum of four to six numbers below 60, added one after the other."""
    numbers = [rng.randint(2, 59) for _ in range(rng.randint(4, 6))]
    question = phrase(
        rng,
        (
            "Add up {numbers}.",
            "What is the total of {numbers}?",
            "What do {numbers} make together?",
            "Find the sum of these numbers: {numbers}.",
        ),
        numbers=join_words(numbers),
    )
    total = numbers[0]
    steps = [f"Start with {total} and add one number after the other."]
    for number in numbers[1:]:
        steps.append(f"Add {number}: {total} + {number} = {total + number}.")
        total += number
    answer_text = f"{' + '.join(map(str, numbers))} = {total}."
    return Exercise(
        f"sum {join_words(sorted(numbers))}", question, tuple(steps), answer_text, str(total)
    )


def series(rng: random.Random) -> Exercise:
    """The next number of an arithmetic series that rises or falls."""
    step, length = rng.randint(3, 29), rng.randint(4, 5)
    first = rng.randint(1, 90)
    if rng.random() < 0.4:
        first, step = first + step * length, -step
    numbers = [first + step * i for i in range(length)]
    question = phrase(
        rng,
        (
            "Which number comes next: {numbers}?",
            "Continue the series {numbers}.",
            "What follows in the sequence {numbers}?",
            "Find the next number after {numbers}.",
        ),
        numbers=join_words(numbers),
    )
    steps = ["Look at the distance from each number to the next."]
    for before, after in pairwise(numbers):
        change = f"{after} - {before} = {step}" if step > 0 else f"{before} - {after} = {-step}"
        steps.append(f"From {before} to {after}: {change}.")
    sign, direction = ("+", "up") if step > 0 else ("-", "down")
    following = numbers[-1] + step
    steps.append(f"The series goes {direction} by {abs(step)} each time.")
    steps.append(f"The next number: {numbers[-1]} {sign} {abs(step)} = {following}.")
    return Exercise(
        f"series {join_words(numbers)}",
        question,
        tuple(steps),
        f"After {numbers[-1]} comes {following}.",
        str(following),
    )
