"""Ordering, duplicates and sizes of the trainer's buffer."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from workers.drafter_trainer.intake import Intake


@dataclass(frozen=True)
class Item:
    number: int
    num_bytes: int = 10


def test_items_leave_in_order_whatever_order_they_come_in():
    intake = Intake(3)
    assert intake.offer(5, Item(5))
    assert intake.offer(4, Item(4))
    assert not intake.ready
    assert intake.offer(3, Item(3))
    assert [intake.take().number for _ in range(3)] == [3, 4, 5]
    assert intake.position == 6 and not intake.ready


def test_second_copies_and_applied_ones_are_dropped_and_counted():
    intake = Intake(1)
    assert intake.offer(1, Item(1))
    assert not intake.offer(1, Item(1))
    assert not intake.offer(0, Item(0))
    intake.take()
    assert not intake.offer(1, Item(1))
    assert intake.num_dropped == 3 and len(intake) == 0


def test_bytes_follow_what_is_inside():
    intake = Intake()
    intake.offer(0, Item(0, 100))
    intake.offer(2, Item(2, 7))
    assert intake.num_bytes == 107
    intake.take()
    assert intake.num_bytes == 7


@given(st.lists(st.integers(0, 12), max_size=60))
def test_every_item_leaves_once_in_order(arrivals: list[int]):
    intake, left = Intake(), []
    for number in arrivals:
        intake.offer(number, Item(number))
        while intake.ready:
            left.append(intake.take().number)
    assert left == list(range(len(left)))
    assert len(left) == next(n for n in range(14) if n not in set(arrivals))
