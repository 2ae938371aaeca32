"""Packed samples and padded rows: the two layouts of a micro-batch.

    packed  [num_tokens, ...]            samples one after the other, what travels over links
    padded  [B, padded_length, ...]      what the target and the drafter compute on

The padded length is part of the batch plan, never of a worker's choice, so that every worker
computes on the same shapes and therefore gets the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pad_rows(packed: Tensor, lengths: Sequence[int], padded_length: int) -> Tensor:
    """Rows [B, padded_length, ...] of a packed tensor [sum(lengths), ...], filled with zeros."""
    _check(packed.shape[0], lengths, padded_length)
    rows = packed.new_zeros((len(lengths), padded_length, *packed.shape[1:]))
    for row, sample in zip(rows, packed.split(list(lengths)), strict=True):
        row[: sample.shape[0]] = sample
    return rows


def strip_rows(padded: Tensor, lengths: Sequence[int]) -> Tensor:
    """The reverse: packed [sum(lengths), ...] from rows [B, S, ...]."""
    return torch.cat([row[:length] for row, length in zip(padded, lengths, strict=True)])


def nonfinite_rows(packed: Tensor, lengths: Sequence[int]) -> list[int]:
    """Numbers of the samples of a packed tensor that hold an infinity or a NaN."""
    samples = packed.split(list(lengths))
    return [row for row, sample in enumerate(samples) if not bool(sample.isfinite().all())]


def _check(num_tokens: int, lengths: Sequence[int], padded_length: int) -> None:
    if sum(lengths) != num_tokens:
        raise ValueError(f"lengths add up to {sum(lengths)}, but there are {num_tokens} tokens")
    if max(lengths, default=0) > padded_length:
        raise ValueError(
            f"a sample of {max(lengths)} tokens does not fit padded_length {padded_length}"
        )
