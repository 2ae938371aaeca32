"""Places in a segment: no overlap, no loss, memory reused from the start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.links.arena import ALIGNMENT, Arena, aligned


def test_a_place_given_back_is_used_again_before_new_memory():
    arena = Arena(10 * ALIGNMENT)
    first, second = arena.allocate(ALIGNMENT), arena.allocate(ALIGNMENT)
    arena.free(first)
    assert arena.allocate(1) == first
    assert second == ALIGNMENT and arena.high_water_bytes == 2 * ALIGNMENT


def test_neighbours_join():
    arena = Arena(3 * ALIGNMENT)
    places = [arena.allocate(ALIGNMENT) for _ in range(3)]
    assert arena.allocate(1) is None
    for place in (places[0], places[2], places[1]):
        arena.free(place)
    assert arena.allocate(3 * ALIGNMENT) == 0


def test_a_hole_that_is_too_small_is_no_place():
    arena = Arena(3 * ALIGNMENT)
    places = [arena.allocate(ALIGNMENT) for _ in range(3)]
    arena.free(places[0])
    arena.free(places[2])
    assert arena.allocate(2 * ALIGNMENT) is None


def test_a_place_cannot_be_given_back_twice():
    arena = Arena(ALIGNMENT)
    arena.free(arena.allocate(1))
    with pytest.raises(KeyError):
        arena.free(0)


@given(
    sizes=st.lists(st.integers(0, 5 * ALIGNMENT), max_size=80),
    order=st.randoms(use_true_random=False),
)
def test_places_never_overlap_and_all_memory_comes_back(sizes, order):
    arena = Arena(12 * ALIGNMENT)
    taken: dict[int, int] = {}
    for size in sizes:
        while (offset := arena.allocate(size)) is None:
            victim = order.choice(sorted(taken))
            del taken[victim]
            arena.free(victim)
        end = offset + aligned(size)
        assert offset >= 0 and end <= arena.capacity_bytes and offset % ALIGNMENT == 0
        assert all(end <= o or o + s <= offset for o, s in taken.items())
        taken[offset] = aligned(size)
    for offset in taken:
        arena.free(offset)
    assert arena.allocate(arena.capacity_bytes) == 0
