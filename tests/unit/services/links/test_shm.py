"""Segments: their memory, their life, and whose they are."""

import errno
import os

import numpy as np
import pytest

from services.links import shm
from services.links.arena import ALIGNMENT
from services.links.identity import LinkIdentity
from services.links.shm import ReceivingSegments, SendingSegment, remove_stale_segments


def _identity(run_id="run1", incarnation="abcd1234"):
    return LinkIdentity(run_id, "w", "batcher", 0, incarnation)


def test_what_is_written_is_read_through_writable_views(tmp_path):
    segment = SendingSegment(_identity(), 2**20, tmp_path)
    data = [np.arange(1000, dtype=np.uint8), np.zeros(0, np.uint8), np.full(77, 3, np.uint8)]
    sizes = [d.nbytes for d in data]
    offsets = segment.place(sizes)
    for place, frame in zip(segment.views(offsets, sizes), data, strict=True):
        place[:] = frame
    reader = ReceivingSegments(_identity(), tmp_path)
    views = reader.views(segment.name, offsets, sizes)
    assert [bytes(v) for v in views] == [d.tobytes() for d in data]
    assert not any(v.readonly for v in views)
    assert all(offset % 64 == 0 for offset in offsets)
    segment.close()
    assert bytes(views[2]) == b"\x03" * 77, "a mapping outlives the file"
    del views
    reader.close()
    assert list(tmp_path.iterdir()) == []


def test_memory_is_reserved_as_demand_grows_and_reused(tmp_path):
    segment = SendingSegment(_identity(), 100 * ALIGNMENT, tmp_path)
    path = tmp_path / segment.name
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_blocks == 0
    for _ in range(50):
        offsets = segment.place([3 * ALIGNMENT])
        segment.free(offsets)
    assert path.stat().st_blocks * 512 == 3 * ALIGNMENT
    segment.close()


def test_a_full_segment_has_no_place_until_one_is_given_back(tmp_path):
    segment = SendingSegment(_identity(), 4 * ALIGNMENT, tmp_path)
    held = segment.place([3 * ALIGNMENT])
    assert segment.fits([4 * ALIGNMENT]) and not segment.fits([4 * ALIGNMENT, 1])
    assert segment.place([2 * ALIGNMENT]) is None
    segment.free(held)
    assert segment.place([2 * ALIGNMENT]) == [0]
    segment.close()


def test_full_memory_is_an_error_before_the_copy_and_leaves_the_books_right(tmp_path, monkeypatch):
    segment = SendingSegment(_identity(), 4 * ALIGNMENT, tmp_path)
    reserve = os.posix_fallocate

    def full(descriptor, offset, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shm.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        segment.place([ALIGNMENT])
    monkeypatch.setattr(shm.os, "posix_fallocate", reserve)
    assert segment.place([4 * ALIGNMENT]) == [0]
    assert (tmp_path / segment.name).stat().st_blocks * 512 == 4 * ALIGNMENT
    segment.close()


@pytest.mark.parametrize(
    "name",
    [
        "dflash-mesh-run1-other999-0",
        "dflash-mesh-run2-abcd1234-0",
        "dflash-mesh-run1-abcd1234-../../../etc/passwd",
        "/etc/passwd",
        "dflash-mesh-run1-abcd1234-",
    ],
)
def test_a_segment_that_is_not_the_peers_is_not_opened(name, tmp_path):
    with pytest.raises(ValueError, match="is not one of"):
        ReceivingSegments(_identity(), tmp_path).views(name, [0], [1])


def test_views_outside_a_segment_are_refused(tmp_path):
    segment = SendingSegment(_identity(), ALIGNMENT, tmp_path)
    reader = ReceivingSegments(_identity(), tmp_path)
    for offsets, sizes in (
        ([ALIGNMENT], [1]),
        ([0], [ALIGNMENT + 1]),
        ([-1], [1]),
        ([5], [-3]),
        ([0, 0], [1]),
    ):
        with pytest.raises(ValueError):
            reader.views(segment.name, offsets, sizes)
    reader.close()
    segment.close()


def test_two_ends_of_one_incarnation_have_segments_of_their_own(tmp_path, monkeypatch):
    first = SendingSegment(_identity(), ALIGNMENT, tmp_path)
    taken = int(first.name.rpartition("-")[2])
    monkeypatch.setattr(shm, "_counter", iter([taken, taken + 1]))
    second = SendingSegment(_identity(), ALIGNMENT, tmp_path)
    assert first.name != second.name
    first.close()
    second.close()


def test_only_segments_of_the_dead_of_this_run_are_removed(tmp_path):
    names = {
        "dflash-mesh-run1-dead0000-0",
        "dflash-mesh-run1-dead0000-17",
        "dflash-mesh-run1-alive000-0",
        "dflash-mesh-run1-b-dead0000-0",  # run 'run1-b'
        "dflash-mesh-run10-dead0000-0",
        "dflash-mesh-run1-dead0000-0.txt",
        "another-file",
    }
    for name in names:
        (tmp_path / name).touch()
    removed = remove_stale_segments("run1", {"alive000"}, tmp_path)
    assert removed == ["dflash-mesh-run1-dead0000-0", "dflash-mesh-run1-dead0000-17"]
    assert {p.name for p in tmp_path.iterdir()} == names - set(removed)
    assert remove_stale_segments("run1", {"alive000"}, tmp_path / "none") == []
