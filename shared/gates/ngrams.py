"""Hashes of n-grams over many samples at once.

Samples lie one after the other in a flat array; `offsets` [B + 1] says where each begins, and the
last entry where the last one ends. No n-gram crosses from one sample into the next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

REPETITION_UNITS = 10
SHINGLE_UNITS = 5
MIN_NGRAMS = 32  # below this a repeated n-gram says nothing
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER = 0xD1342543DE82EF95
_KEPT_BITS = np.uint64(40)  # of an n-gram's hash, beside the sample's number


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers that spreads every bit over all of them."""
    mixed = (values ^ (values >> np.uint64(32))) * _SPREAD
    mixed ^= mixed >> np.uint64(29)
    mixed *= _SPREAD
    mixed ^= mixed >> np.uint64(32)
    return mixed


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """[B] lengths to [B + 1] offsets."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def sums(values: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """True values in each sample; 0 for an empty one."""
    running = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=running[1:])
    total: NDArray[np.int64] = running[offsets[1:]] - running[offsets[:-1]]
    return total


def ngram_hashes(
    units: NDArray[np.int64], offsets: NDArray[np.int64], width: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """64-bit hashes of all n-grams of `width` (5 or 10) units, and their offsets by sample."""
    assert width in (SHINGLE_UNITS, REPETITION_UNITS)
    counts = np.maximum(np.diff(offsets) - width + 1, 0)
    if not counts.any():
        return np.zeros(0, np.uint64), offsets_of(counts)
    # A polynomial over the units, by doubling: w(n + m)[i] = w(n)[i] * M**m + w(m)[i + n].
    one = mix(units.view(np.uint64))
    two = _join(one, one, 1, 1)
    four = _join(two, two, 2, 2)
    if width == SHINGLE_UNITS:
        hashes = _join(four, one, 4, 1)
    else:
        hashes = _join(_join(four, four, 4, 4), two, 8, 2)
    hashes ^= hashes >> np.uint64(29)
    hashes *= _SPREAD
    whole = np.ones(len(units), bool)
    # Positions too close to their sample's end; what lies before its start is too close as well.
    close = (offsets[1:, None] - np.arange(1, width)).ravel()
    whole[close[close >= 0]] = False
    return hashes[whole[: len(hashes)]], offsets_of(counts)


def repeated_shares(units: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """1 - distinct / all over the 10-grams of each sample; 0 for those too short to judge."""
    num_samples = len(offsets) - 1
    if not (np.diff(offsets) >= MIN_NGRAMS + REPETITION_UNITS - 1).any():
        return np.zeros(num_samples)
    hashes, starts = ngram_hashes(units, offsets, REPETITION_UNITS)
    totals = np.diff(starts)
    owner = np.repeat(np.arange(num_samples, dtype=np.uint64), totals)
    keys = np.sort((owner << _KEPT_BITS) | (hashes >> (np.uint64(64) - _KEPT_BITS)))
    first = np.ones(len(keys), bool)
    first[1:] = keys[1:] != keys[:-1]
    owners = (keys[first] >> _KEPT_BITS).astype(np.int64)
    distinct = np.bincount(owners, minlength=num_samples)
    shares = 1 - distinct / np.maximum(totals, 1)
    return np.where(totals >= MIN_NGRAMS, shares, 0.0)


def _join(
    left: NDArray[np.uint64], right: NDArray[np.uint64], num_left: int, num_right: int
) -> NDArray[np.uint64]:
    """Polynomials over `num_left` units and the `num_right` units that follow them."""
    joined = left[: len(right) - num_left] * np.uint64(pow(_MULTIPLIER, num_right, 1 << 64))
    joined += right[num_left:]
    return joined
