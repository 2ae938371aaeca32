"""Exercises with weekdays, dates and times of day."""

from __future__ import annotations

import random

from shared.tiny_target.exercise import NAMES, Exercise, amount, join_words, phrase

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    ("January", 31),
    ("February", 28),
    ("March", 31),
    ("April", 30),
    ("May", 31),
    ("June", 30),
    ("July", 31),
    ("August", 31),
    ("September", 30),
    ("October", 31),
    ("November", 30),
    ("December", 31),
)


def weekday(rng: random.Random) -> Exercise:
    """The weekday a number of days before or after a given one: whole weeks first, then count."""
    start, days, back = rng.randrange(7), rng.randint(8, 299), rng.random() < 0.4
    name = _WEEKDAYS[start]
    templates = (
        (
            "Today is {name}. Which day of the week was it {days} days ago?",
            "If today is {name}, what day was it {days} days ago?",
            "Which weekday comes {days} days before a {name}?",
        )
        if back
        else (
            "Today is {name}. Which day of the week will it be in {days} days?",
            "If today is {name}, what day is it in {days} days?",
            "Which weekday comes {days} days after a {name}?",
        )
    )
    question = phrase(rng, templates, name=name, days=days)
    weeks, rest = divmod(days, 7)
    sign = -1 if back else 1
    steps = [
        "The days of the week repeat after 7 days.",
        f"Whole weeks: 7 x {weeks} = {7 * weeks}.",
        f"Days that remain: {days} - {7 * weeks} = {rest}.",
    ]
    passed = [_WEEKDAYS[(start + sign * i) % 7] for i in range(1, rest + 1)]
    if passed:
        steps.append(f"Count {rest} {'back' if back else 'on'} from {name}: {join_words(passed)}.")
    else:
        steps.append(f"Nothing remains, so it stays {name}.")
    answer = _WEEKDAYS[(start + sign * days) % 7]
    answer_text = f"{days} days {'before' if back else 'after'} a {name} comes a {answer}."
    return Exercise(f"{name} {sign * days:+d} days", question, tuple(steps), answer_text, answer)


def date(rng: random.Random) -> Exercise:
    """The date a number of days after a given one, in a year that is no leap year."""
    month = rng.randrange(12)
    name, length = _MONTHS[month]
    day, days = rng.randint(1, length), rng.randint(5, 45)
    question = phrase(
        rng,
        (
            "Which date comes {days} days after {day} {name}?",
            "It is {day} {name}. What is the date in {days} days?",
            "A parcel is sent on {day} {name} and needs {days} days. When does it arrive?",
            "What date is {days} days later than {day} {name}?",
        ),
        days=days,
        day=day,
        name=name,
    )
    start, reached = f"{day} {name}", day + days
    steps = [f"Add the days: {day} + {days} = {reached}."]
    while reached > length:
        steps.append(
            f"{name} has {length} days, {reached} is more: "
            f"{reached} - {length} = {reached - length}."
        )
        reached -= length
        month = (month + 1) % 12
        name, length = _MONTHS[month]
        steps.append(f"Go on to the next month, {name}.")
    steps.append(f"{name} has {length} days, {reached} is not more.")
    answer = f"{reached} {name}"
    return Exercise(
        f"{start} + {days} days",
        question,
        tuple(steps),
        f"{days} days after {start} comes {answer}.",
        answer,
    )


def arrival(rng: random.Random) -> Exercise:
    """The time of day a number of minutes after a given one, within the same day."""
    hour, minute, minutes = rng.randint(5, 18), rng.randint(0, 59), rng.randint(20, 295)
    start = f"{hour}:{minute:02d}"
    question = phrase(
        rng,
        (
            "A train leaves at {start} and travels for {minutes} minutes. When does it arrive?",
            "A film starts at {start} and lasts {minutes} minutes. When does it end?",
            "{person} begins to work at {start} and stops after {minutes} minutes. At what time?",
            "What time is it {minutes} minutes after {start}?",
        ),
        start=start,
        minutes=minutes,
        person=rng.choice(NAMES),
    )
    hours, rest = divmod(minutes, 60)
    steps = [
        f"Full hours in {minutes} minutes: {hours} x 60 = {hours * 60}.",
        f"Minutes that remain: {minutes} - {hours * 60} = {rest}.",
        f"Add the hours: {hour} + {hours} = {hour + hours}.",
    ]
    end_hour, end_minute = hour + hours, minute + rest
    steps.append(f"Add the minutes: {minute} + {rest} = {end_minute}.")
    if end_minute >= 60:
        end_hour, end_minute = end_hour + 1, end_minute - 60
        steps.append(
            f"That is a full hour more: {end_minute + 60} - 60 = {end_minute} "
            f"and {end_hour - 1} + 1 = {end_hour}."
        )
    else:
        steps.append("That is less than a full hour.")
    answer = f"{end_hour}:{end_minute:02d}"
    return Exercise(
        f"{start} + {minutes} minutes",
        question,
        tuple(steps),
        f"{minutes} minutes after {start} it is {answer}.",
        answer,
    )


def time_between(rng: random.Random) -> Exercise:
    """Hours and minutes from one time of day to a later one."""
    first = rng.randint(6 * 60, 14 * 60)
    last = first + rng.randint(35, 8 * 60)
    (h1, m1), (h2, m2) = divmod(first, 60), divmod(last, 60)
    question = phrase(
        rng,
        (
            "How long is it from {a} to {b}?",
            "A shop is open from {a} to {b}. How long is that?",
            "{person} sleeps from {a} to {b}. For how long?",
            "How much time passes between {a} and {b}?",
        ),
        a=f"{h1}:{m1:02d}",
        b=f"{h2}:{m2:02d}",
        person=rng.choice(NAMES),
    )
    hours, minutes = h2 - h1, m2 - m1
    steps = [f"Take the hours: {h2} - {h1} = {hours}."]
    if minutes < 0:
        steps.append(
            f"Take the minutes: {m2} is less than {m1}, "
            f"borrow an hour: {m2 + 60} - {m1} = {minutes + 60}."
        )
        steps.append(f"Hours that remain: {hours} - 1 = {hours - 1}.")
        hours, minutes = hours - 1, minutes + 60
    else:
        steps.append(f"Take the minutes: {m2} - {m1} = {minutes}, nothing to borrow.")
        steps.append(f"Hours that remain: {hours}.")
    answer = f"{amount(hours, 'hours')} and {amount(minutes, 'minutes')}"
    return Exercise(
        f"{h1}:{m1:02d} to {h2}:{m2:02d}",
        question,
        tuple(steps),
        f"From {h1}:{m1:02d} to {h2}:{m2:02d} it is {answer}.",
        answer,
    )
