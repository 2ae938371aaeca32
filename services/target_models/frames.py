"""Tensors as the frames of a link, and back.

A frame's bytes belong to the link: they are valid until the message is released, so a tensor made
by `tensor_view` must be copied before that. bfloat16 has no buffer type of its own and travels as
its raw bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from services.links import Frame
from shared.errors import IntegrityError

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def tensor_frame(name: str, tensor: Tensor) -> Frame:
    """The frame of a tensor; copies only when it is not contiguous or not on the CPU."""
    tensor = tensor.detach().to("cpu").contiguous()
    # Viewed as bytes, because numpy has no bfloat16.
    raw: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return Frame(name, _NAMES[tensor.dtype], tuple(tensor.shape), memoryview(raw))


def tensor_view(frame: Frame) -> Tensor:
    """A tensor on the frame's own memory. IntegrityError when size and shape do not agree."""
    dtype = _DTYPES.get(frame.dtype)
    if dtype is None:
        raise IntegrityError(f"frame {frame.name!r} has the unknown dtype {frame.dtype!r}")
    expected = dtype.itemsize
    for size in frame.shape:
        expected *= size
    data = memoryview(frame.data).cast("B")
    if len(data) != expected:
        raise IntegrityError(
            f"frame {frame.name!r} has {len(data)} bytes; shape {frame.shape} of {frame.dtype} "
            f"needs {expected}"
        )
    if not expected:
        return torch.empty(frame.shape, dtype=dtype)
    flat = torch.frombuffer(bytearray(data) if data.readonly else data, dtype=dtype)
    return flat.reshape(frame.shape)


def tensor_copy(frame: Frame) -> Tensor:
    """A tensor of its own with the frame's content."""
    view = tensor_view(frame)
    return view if memoryview(frame.data).readonly else view.clone()
