"""Exact and near duplicates among the accepted samples.

Exact: the same token ids. Near: the Jaccard similarity of the two samples' sets of token 5-grams,
prompt and answer together, estimated by MinHash and found by locality-sensitive hashing. Token
sequences instead of words make it work for text without spaces. The first of two duplicates stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from datasketch import LeanMinHash, MinHash, MinHashLSH
from numpy.typing import NDArray

_SHINGLE_TOKENS = 5
_NUM_PERM = 128
_MIN_SHINGLES = 16  # shorter samples are only compared exactly


class DuplicateIndex:
    """Accepted samples, by content. `near_similarity` None leaves near duplicates alone."""

    def __init__(self, near_similarity: float | None) -> None:
        self._exact: dict[bytes, int] = {}
        self._threshold = near_similarity
        self._signatures: dict[int, LeanMinHash] = {}
        self._lsh = (
            None
            if near_similarity is None
            else MinHashLSH(
                # What the bands find is checked by its similarity, so they may find too much.
                threshold=min(near_similarity, 0.99),
                num_perm=_NUM_PERM,
                weights=(0.1, 0.9),
            )
        )

    def exact(self, ids: Sequence[int]) -> int | None:
        """`seq` of the accepted sample with the same ids."""
        return self._exact.get(_digest(ids))

    def near(self, ids: Sequence[int]) -> tuple[int, float] | None:
        """`seq` and similarity of the most similar accepted sample at or above the threshold."""
        signature = self._signature(ids)
        if self._lsh is None or signature is None:
            return None
        found = [
            (self._signatures[seq].jaccard(signature), -seq) for seq in self._lsh.query(signature)
        ]
        if not found or max(found)[0] < (self._threshold or 0.0):
            return None
        similarity, negative = max(found)
        return -negative, similarity

    def add(self, seq: int, ids: Sequence[int]) -> None:
        """Remember an accepted sample."""
        self._exact.setdefault(_digest(ids), seq)
        signature = self._signature(ids)
        if self._lsh is not None and signature is not None:
            self._signatures[seq] = signature
            self._lsh.insert(seq, signature)

    def _signature(self, ids: Sequence[int]) -> LeanMinHash | None:
        if self._lsh is None or len(ids) < _SHINGLE_TOKENS + _MIN_SHINGLES - 1:
            return None
        key = _digest(ids)
        if key != self._last[0]:
            sketch = MinHash(num_perm=_NUM_PERM, seed=1, hashfunc=int)
            sketch.update_batch(shingles(ids).tolist())
            self._last = (key, LeanMinHash(sketch))
        return self._last[1]

    # `near` and `add` are called one after the other for the same sample.
    _last: tuple[bytes, LeanMinHash | None] = (b"", None)


def shingles(ids: Sequence[int]) -> NDArray[np.uint32]:
    """Distinct 32-bit hashes of the token 5-grams, sorted."""
    tokens = np.asarray(ids, dtype=np.uint64)
    count = len(tokens) - _SHINGLE_TOKENS + 1
    mixed = np.zeros(max(count, 0), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for offset in range(_SHINGLE_TOKENS if count > 0 else 0):
            mixed = (mixed ^ tokens[offset : offset + count]) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
    return np.unique((mixed >> np.uint64(32)).astype(np.uint32))


def _digest(ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(np.asarray(ids, dtype=np.int64).tobytes(), digest_size=16).digest()
