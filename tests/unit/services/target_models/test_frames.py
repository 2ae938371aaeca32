"""Tensors as frames and back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from services.target_models.frames import tensor_copy, tensor_frame, tensor_view
from shared.errors import IntegrityError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (1,)])
def test_a_tensor_comes_back(dtype: torch.dtype, shape: tuple[int, ...]):
    tensor = torch.arange(12).to(dtype)[: torch.Size(shape).numel()].reshape(shape)
    frame = tensor_frame("x", tensor)
    assert frame.shape == shape and frame.dtype == str(dtype).removeprefix("torch.")
    assert torch.equal(tensor_view(frame), tensor)


def test_a_strided_tensor_is_made_contiguous():
    tensor = torch.arange(12.0).reshape(3, 4).T
    assert torch.equal(tensor_view(tensor_frame("x", tensor)), tensor)


def test_a_copy_does_not_follow_the_link_s_memory():
    memory = torch.ones(4)
    frame = tensor_frame("x", memory)
    copy, view = tensor_copy(frame), tensor_view(frame)
    memory.zero_()
    assert copy.tolist() == [1, 1, 1, 1] and view.tolist() == [0, 0, 0, 0]


def test_a_frame_that_does_not_add_up_is_refused():
    frame = tensor_frame("x", torch.ones(4))
    with pytest.raises(IntegrityError, match="'x'"):
        tensor_view(replace(frame, shape=(5,)))
    with pytest.raises(IntegrityError, match="dtype"):
        tensor_view(replace(frame, dtype="complex64"))
