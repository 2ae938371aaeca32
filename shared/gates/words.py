"""Words of many texts as 64-bit hashes: what the gates count when there is no tokenizer.

A word is what lies between white space. A character of three or more bytes from U+3000 on is a
word of its own, so that text written without spaces has words too; so is what follows after other
than ASCII. The hash of a word depends on its bytes alone: a polynomial over them, modulo 2**64,
computed for all words of all texts in a few passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shared.gates.ngrams import mix, offsets_of

_BASE = 0xD6E8FEB86659FD93  # odd, so it has an inverse modulo 2**64
_INVERSE = pow(_BASE, -1, 1 << 64)
_KEPT_POWERS = 1 << 20
_FIRST_LONG_LEAD = 0xE3  # UTF-8 lead bytes of U+3000 and above


def word_hashes(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hashes of the words of all texts, one text after the other, and the offsets by text."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded)) + 1
    data = np.frombuffer(b"\n".join([*encoded, b""]), np.uint8)
    if not len(data):
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    starts = np.flatnonzero(_is_start(data))
    offsets = np.searchsorted(starts, offsets_of(sizes))
    if not len(starts):
        return np.zeros(0, np.int64), offsets
    powers, inverses = _power_tables(len(data))
    terms = data.astype(np.uint64)
    terms[data <= 32] = 0
    terms *= powers[: len(data)]
    hashes = np.add.reduceat(terms, starts) * inverses[starts]
    return mix(hashes).view(np.int64), offsets


def _is_start(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether a word begins at the byte."""
    ink = data > 32
    start = np.empty(len(data), bool)
    start[0] = ink[0]
    np.greater(ink[1:], ink[:-1], out=start[1:])
    if int(data.max()) >= 0x80:
        start |= data >= _FIRST_LONG_LEAD
        start[1:] |= ink[1:] & (data[1:] < 0x80) & (data[:-1] >= 0x80)
    return start


def _power_tables(length: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    if length > _KEPT_POWERS:
        return _powers(_BASE, length), _powers(_INVERSE, length)
    return _POWERS, _INVERSES


def _powers(base: int, length: int) -> NDArray[np.uint64]:
    factors = np.full(length, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


_POWERS, _INVERSES = _powers(_BASE, _KEPT_POWERS), _powers(_INVERSE, _KEPT_POWERS)
