"""Credit windows: what is admitted, and that the books balance."""

from hypothesis import given
from hypothesis import strategies as st

from services.links.credit import CreditWindow
from services.links.identity import LinkLimits


def test_both_limits_hold():
    window = CreditWindow(LinkLimits(max_messages=3, max_bytes=100))
    window.take(0, 60)
    assert window.admits(40) and not window.admits(41)
    window.take(1, 10)
    window.take(2, 10)
    assert not window.admits(0), "three messages are outstanding"
    assert window.give_back(0)
    assert window.admits(80) and not window.admits(81)


def test_a_message_above_the_whole_credit_passes_alone():
    window = CreditWindow(LinkLimits(max_messages=3, max_bytes=100))
    assert window.admits(1000)
    window.take(0, 1)
    assert not window.admits(1000)
    window.give_back(0)
    window.take(1, 1000)
    assert not window.admits(0), "nothing passes beside it"


def test_credit_is_given_back_once():
    window = CreditWindow(LinkLimits(max_messages=3, max_bytes=100))
    window.take(7, 50)
    assert window.give_back(7)
    assert not window.give_back(7)
    assert not window.give_back(8)
    assert (window.num_messages, window.num_bytes) == (0, 0)


@given(
    sizes=st.lists(st.integers(0, 250), max_size=60),
    order=st.randoms(use_true_random=False),
    limits=st.builds(LinkLimits, st.integers(1, 8), st.integers(1, 200)),
)
def test_any_sequence_ends_and_stays_within_the_limits(sizes, order, limits):
    window = CreditWindow(limits)
    outstanding: dict[int, int] = {}
    for number, size in enumerate(sizes):
        while not window.admits(size):
            assert outstanding, "an empty window admits everything"
            released = order.choice(sorted(outstanding))
            del outstanding[released]
            assert window.give_back(released)
        window.take(number, size)
        outstanding[number] = size
        assert window.num_messages == len(outstanding) <= limits.max_messages
        assert window.num_bytes == sum(outstanding.values())
        assert window.num_bytes <= limits.max_bytes or len(outstanding) == 1
