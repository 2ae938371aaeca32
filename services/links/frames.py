"""Tensor frames: checked on the way out, checked against their specs on the way in.

A frame's bytes are C-contiguous and little-endian and are never pickled. Checksums (crc32) run
off the event loop when there is much to read; zlib releases the interpreter lock for them.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shared.errors import IntegrityError
from shared.messages import FrameSpec

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")
ByteArray = NDArray[np.uint8]

OFF_LOOP_BYTES = 2**20  # below this a thread costs more than it frees

_ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}


@dataclass(frozen=True)
class Frame:
    """One tensor: torch's dtype name, its shape, and its bytes.

    Received frames hold a writable memoryview of bytes, fit for `torch.frombuffer` and
    `numpy.frombuffer`, until their message is released.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Buffer


def frame_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor; ValueError for a dtype that links do not carry."""
    if dtype not in _ITEM_BYTES:
        raise ValueError(f"dtype {dtype!r} is none of {', '.join(_ITEM_BYTES)}")
    return _ITEM_BYTES[dtype] * math.prod(shape)


def flatten(frames: Sequence[Frame]) -> list[ByteArray]:
    """The bytes of each frame without a copy.

    ValueError, naming the frame, when names repeat, the data is no C-contiguous buffer, or its
    size does not follow from dtype and shape.
    """
    flat: list[ByteArray] = []
    seen: set[str] = set()
    for frame in frames:
        if frame.name in seen:
            raise ValueError(f"frame {frame.name!r} appears twice in one message")
        seen.add(frame.name)
        try:
            view = memoryview(frame.data)
        except TypeError:
            raise ValueError(
                f"frame {frame.name!r}: {type(frame.data).__name__} is no buffer; pass bytes, a "
                "memoryview or a numpy array"
            ) from None
        if not view.c_contiguous:
            raise ValueError(f"frame {frame.name!r} is not C-contiguous: copy it first")
        expected = frame_bytes(frame.dtype, frame.shape)
        if view.nbytes != expected:
            raise ValueError(
                f"frame {frame.name!r} has {view.nbytes} bytes but {frame.dtype} "
                f"{list(frame.shape)} has {expected}"
            )
        flat.append(np.frombuffer(view, np.uint8) if expected else np.empty(0, np.uint8))
    return flat


def specs_of(frames: Sequence[Frame], checksums: Sequence[int]) -> list[FrameSpec]:
    """The header entries of `frames`; a checksum for each."""
    return [
        FrameSpec(
            name=frame.name,
            dtype=frame.dtype,
            shape=tuple(frame.shape),
            num_bytes=frame_bytes(frame.dtype, frame.shape),
            checksum=checksum,
        )
        for frame, checksum in zip(frames, checksums, strict=True)
    ]


def checksums_of(buffers: Sequence[Any]) -> list[int]:
    """crc32 of each buffer."""
    return [zlib.crc32(buffer) for buffer in buffers]


def copy_all(places: Sequence[ByteArray], frames: Sequence[ByteArray]) -> None:
    """Copy each frame to its place; numpy releases the interpreter lock meanwhile."""
    for place, frame in zip(places, frames, strict=True):
        np.copyto(place, frame)


def check_sizes(specs: Sequence[FrameSpec], sizes: Sequence[int]) -> None:
    """ValueError when the frames that came are not those the header announces."""
    if len(specs) != len(sizes):
        raise ValueError(f"{len(sizes)} frames came but the header announces {len(specs)}")
    if len({spec.name for spec in specs}) != len(specs):
        raise ValueError("the header announces two frames of one name")
    for spec, size in zip(specs, sizes, strict=True):
        if any(length < 0 for length in spec.shape):
            raise ValueError(f"frame {spec.name!r} has a negative length in its shape")
        if not size == spec.num_bytes == frame_bytes(spec.dtype, spec.shape):
            raise ValueError(
                f"frame {spec.name!r} has {size} bytes but the header announces {spec.num_bytes} "
                f"for {spec.dtype} {list(spec.shape)}"
            )


def verify(specs: Sequence[FrameSpec], buffers: Sequence[Any], where: str) -> None:
    """IntegrityError naming `where` (link and peer) and the frame whose checksum differs."""
    for spec, found in zip(specs, checksums_of(buffers), strict=True):
        if found != spec.checksum:
            raise IntegrityError(
                f"{where}: frame {spec.name!r} arrived with crc32 {found:08x} instead of "
                f"{spec.checksum:08x}: the bytes changed on the way; the channel is closed"
            )


async def off_loop(function: Callable[[], T], num_bytes: int) -> T:
    """The result of `function`, computed in a thread when it touches many bytes.

    A cancellation is raised only once the thread has ended, so that nobody reuses memory that
    it still reads or writes.
    """
    if num_bytes < OFF_LOOP_BYTES:
        return function()
    future = asyncio.get_running_loop().run_in_executor(None, function)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue
        if not future.cancelled():
            future.exception()  # the cancellation outranks it
        raise
