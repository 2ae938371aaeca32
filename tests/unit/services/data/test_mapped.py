import errno
import hashlib
import os
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.data.mapped import DigestCounts, MappedArray
from shared.errors import DiskFullError


def digest(number):
    return hashlib.sha256(str(number).encode()).digest()


def test_arrays_grow_and_keep_their_numbers(tmp_path):
    array = MappedArray("I", tmp_path)
    for number in range(50_000):
        array.append(2**32 - 1 - number)
    assert array.size == 50_000 and array.cells[0] == 2**32 - 1
    assert array.cells[49_999] == 2**32 - 50_000
    assert list(tmp_path.iterdir()) == [], "its file has no name"
    array.close()


def test_counts_are_right_past_every_growth():
    numbers = [n * n % 30_011 for n in range(60_000)]
    before: Counter[int] = Counter()
    with DigestCounts() as seen:
        for number in numbers:
            assert seen.add(digest(number)) == before[number]
            before[number] += 1
        assert len(seen) == len(before)
        assert list(seen) == [digest(number) for number in before]
        for at, (number, count) in enumerate(before.items()):
            assert seen.id_of(digest(number)) == at and seen.count(at) == count


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30))
def test_digests_that_fall_on_the_same_slot_are_kept_apart(numbers):
    before: Counter[int] = Counter()
    with DigestCounts() as seen:
        for number in numbers:
            assert seen.add(b"\xff" * 31 + bytes([number])) == before[number]
            before[number] += 1


def test_a_full_disk_is_no_crash(tmp_path, monkeypatch):
    def full(descriptor, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    array = MappedArray("B", tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFullError, match="free some space"):
        array.extend(b"x" * 2**20)
    with pytest.raises(DiskFullError):
        MappedArray("B", tmp_path)
    array.close()
