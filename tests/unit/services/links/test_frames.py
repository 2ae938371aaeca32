"""Frames: what may be sent, and what is believed of what arrives."""

import asyncio
import threading

import numpy as np
import pytest

from services.links.frames import (
    OFF_LOOP_BYTES,
    Frame,
    check_sizes,
    checksums_of,
    flatten,
    off_loop,
    specs_of,
    verify,
)
from shared.errors import IntegrityError
from shared.messages import FrameSpec


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 24,
        bytearray(24),
        memoryview(bytearray(24)),
        np.zeros((2, 3), np.float32),
        np.zeros(6, np.dtype("<f4")),
        np.zeros((2, 3, 4), np.uint8),
    ],
)
def test_any_contiguous_buffer_is_flattened_without_a_copy(data):
    (flat,) = flatten([Frame("x", "float32", (2, 3), data)])
    assert flat.dtype == np.uint8 and flat.shape == (24,)
    assert np.shares_memory(flat, np.frombuffer(data, np.uint8))


def test_an_empty_tensor_is_a_frame():
    (flat,) = flatten([Frame("x", "int64", (0, 7), np.zeros((0, 7), np.int64))])
    assert flat.nbytes == 0


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (Frame("x", "float32", (7,), b"\x00" * 24), "'x' has 24 bytes but float32 .7. has 28"),
        (Frame("x", "complex64", (3,), b"\x00" * 24), "complex64.*none of"),
        (Frame("x", "float32", (6,), [0.0] * 6), "list is no buffer"),
        (Frame("x", "float32", (3,), np.zeros(6, np.float32)[::2]), "not C-contiguous"),
        (Frame("x", "float32", (3, 2), np.zeros((2, 3), np.float32).T), "not C-contiguous"),
    ],
)
def test_what_is_no_tensor_is_refused_by_name(frame, message):
    with pytest.raises(ValueError, match=message):
        flatten([frame])


def test_two_frames_of_one_name_are_refused():
    with pytest.raises(ValueError, match="'x' appears twice"):
        flatten([Frame("x", "uint8", (1,), b"a"), Frame("x", "uint8", (1,), b"b")])


def _spec(**changes):
    fields = {"name": "x", "dtype": "int64", "shape": (2,), "num_bytes": 16, "checksum": 0}
    return FrameSpec(**(fields | changes))


@pytest.mark.parametrize(
    ("specs", "sizes"),
    [
        ([_spec()], []),
        ([_spec()], [16, 16]),
        ([_spec()], [15]),
        ([_spec(num_bytes=8)], [8]),
        ([_spec(shape=(-2, -1))], [16]),
        ([_spec(dtype="object")], [16]),
        ([_spec(), _spec()], [16, 16]),
    ],
)
def test_frames_that_do_not_match_the_header_are_refused(specs, sizes):
    check_sizes([_spec()], [16])
    with pytest.raises(ValueError):
        check_sizes(specs, sizes)


def test_a_flipped_bit_is_found_and_named():
    frames = [Frame("a", "uint8", (5,), b"hello"), Frame("b", "uint8", (5,), b"world")]
    specs = specs_of(frames, checksums_of([b"hello", b"world"]))
    verify(specs, [b"hello", b"world"], "link 'x'")
    with pytest.raises(IntegrityError, match="link 'x': frame 'b' arrived with crc32"):
        verify(specs, [b"hello", b"worlt"], "link 'x'")


async def test_much_work_leaves_the_loop_and_ends_before_a_cancellation_is_raised():
    started, proceed = threading.Event(), threading.Event()
    ended = []

    def work():
        started.set()
        assert proceed.wait(20)
        ended.append(threading.current_thread())

    task = asyncio.create_task(off_loop(work, OFF_LOOP_BYTES))
    assert await asyncio.to_thread(started.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done(), "the thread still works on the memory"
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended and ended[0] is not threading.main_thread()
    assert await off_loop(threading.current_thread, 10) is threading.main_thread()
