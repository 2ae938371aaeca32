"""MinHash signatures of samples, and the band keys by which similar ones find each other.

    units of a sample -> hashes of its 5-grams -> signature [128] -> one key for each band

The signatures are rensa's. Two samples whose sets of 5-grams have Jaccard similarity J agree in a
share of about J of the places (standard deviation sqrt(J (1 - J) / 128)), and in a whole band of r
places with probability J ** r, so of b bands at least one agrees with 1 - (1 - J ** r) ** b.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rensa import RMinHash

from shared.gates.ngrams import SHINGLE_UNITS, mix, ngram_hashes, offsets_of

NUM_PERM = 128
_SEED = 1
_MIN_SHINGLES = 16  # shorter samples are only compared exactly
_FOUND_AT_THRESHOLD = 0.99
_PACKED_ROW = struct.Struct(f"={NUM_PERM}I")


@dataclass(frozen=True)
class Bands:
    """`num_bands` groups of `num_rows` places of the signature."""

    num_bands: int
    num_rows: int

    @classmethod
    def for_threshold(cls, similarity: float) -> Bands:
        """The widest bands that miss at most 1 % of the pairs at the threshold.

        What the bands find is checked by its similarity, so they may find too much.
        """
        similarity = min(similarity, 0.99)
        for num_rows in range(NUM_PERM, 1, -1):
            bands = cls(NUM_PERM // num_rows, num_rows)
            if 1 - (1 - similarity**num_rows) ** bands.num_bands >= _FOUND_AT_THRESHOLD:
                return bands
        return cls(NUM_PERM, 1)

    def keys(self, signatures: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """[n, 128] signatures to [n, num_bands] keys; no two bands share a key."""
        used = signatures[:, : self.num_bands * self.num_rows].astype(np.uint64)
        places = used.reshape(len(signatures), self.num_bands, self.num_rows)
        keys = np.broadcast_to(
            np.arange(1, self.num_bands + 1, dtype=np.uint64), places.shape[:2]
        ).copy()
        for at in range(self.num_rows):
            keys = mix((keys << np.uint64(1)) ^ (keys >> np.uint64(63)) ^ places[:, :, at])
        return keys


def signatures_of(
    units: NDArray[np.int64], offsets: NDArray[np.int64], wanted: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Which samples have a signature ([n] positions), and the signatures [n, 128].

    Only `wanted` samples get one, and only those with enough units to compare.
    """
    lengths = np.diff(offsets)
    wanted = wanted & (lengths >= SHINGLE_UNITS + _MIN_SHINGLES - 1)
    chosen = np.flatnonzero(wanted)
    if not len(chosen):
        return chosen, np.zeros((0, NUM_PERM), np.uint32)
    if len(chosen) < len(lengths):
        units = units[np.repeat(wanted, lengths)]
        offsets = offsets_of(lengths[chosen])
    hashes, starts = ngram_hashes(units, offsets, SHINGLE_UNITS)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, starts.astype(np.uint64), NUM_PERM, _SEED
    )
    packed = b"".join([_PACKED_ROW.pack(*row) for row in matrix.to_rows()])
    return chosen, np.frombuffer(packed, np.uint32).reshape(len(chosen), NUM_PERM)
