"""Exact and near duplicates among the accepted samples.

Exact: the same content key (a 64-bit hash of token ids, or of the text). Near: the Jaccard
similarity of the two samples' sets of 5-grams, prompt and answer together, estimated by MinHash.
The first of two duplicates stays.

A band key belongs to the first accepted sample that has it, so a new sample is compared with at
most one sample for each band, however much of the data is boilerplate. Invariant: findings depend
on the samples and their order alone. Inside a batch, samples that share a fresh band key are
followed one by one, as if they had come alone.

Memory for each accepted sample: 256 bytes of signature (the lower halves of its places), and for
each of its 12 band keys and its content key 16 to 32 bytes of table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.gates.key_table import KeyTable
from shared.gates.minhash import NUM_PERM, Bands, signatures_of

_FIRST_ROWS = 1 << 10


@dataclass(frozen=True)
class Duplicate:
    """The accepted sample that came first; `similarity` None means exactly the same."""

    seq: int
    similarity: float | None = None


@dataclass
class Comparison:
    """A batch beside the index: what `compare` found, until `add` takes the accepted over."""

    keys: NDArray[np.uint64]  # [B] content
    seqs: Sequence[int]
    found: list[Duplicate | None]
    position: NDArray[np.int64]  # [B] row of the signature, -1 without one
    signatures: NDArray[np.uint16]  # [n, 128]
    band_keys: NDArray[np.uint64]  # [n, num_bands]
    owned: NDArray[np.bool_]  # [n, num_bands] whether the key has an owner in the index
    owners: dict[int, int] = field(default_factory=dict)  # fresh shared key -> sample in the batch


class DuplicateIndex:
    """Accepted samples, by content. `near_similarity` None leaves near duplicates alone."""

    def __init__(self, near_similarity: float | None) -> None:
        self._threshold = near_similarity
        self._bands = Bands.for_threshold(1.0 if near_similarity is None else near_similarity)
        self._exact = KeyTable()
        self._band_table = KeyTable()
        self._seqs = np.zeros(_FIRST_ROWS, np.int64)
        self._signatures = np.zeros((_FIRST_ROWS, NUM_PERM), np.uint16)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def num_bytes(self) -> int:
        """Memory of what is remembered; room that was never written to does not count."""
        rows = self._size * (8 + (0 if self._threshold is None else 2 * NUM_PERM))
        return rows + self._exact.num_bytes + self._band_table.num_bytes

    def compare(
        self,
        keys: NDArray[np.uint64],
        seqs: Sequence[int],
        units: NDArray[np.int64],
        offsets: NDArray[np.int64],
        usable: NDArray[np.bool_],
    ) -> Comparison:
        """Duplicates of the usable samples, among the index and those before them in the batch."""
        exact = self._exact.find(keys)
        near = usable & (exact < 0) if self._threshold is not None else np.zeros(len(keys), bool)
        chosen, signatures = signatures_of(units, offsets, near)
        position = np.full(len(keys), -1, np.int64)
        position[chosen] = np.arange(len(chosen))
        band_keys = self._bands.keys(signatures)
        owners = self._band_table.find(band_keys.ravel()).reshape(band_keys.shape)
        batch = Comparison(
            keys=keys,
            seqs=seqs,
            found=[None] * len(keys),
            position=position,
            signatures=signatures.astype(np.uint16),
            band_keys=band_keys,
            owned=owners >= 0,
        )
        self._follow(batch, exact, self._most_similar(batch, owners), usable)
        return batch

    def add(self, batch: Comparison, accepted: NDArray[np.int64]) -> None:
        """Remember the samples at `accepted` (positions in the batch, ascending)."""
        rows = self._take_rows(len(accepted))
        self._seqs[rows] = np.asarray(batch.seqs, np.int64)[accepted]
        self._exact.add(batch.keys[accepted], rows)
        places = batch.position[accepted]
        compared = places >= 0
        rows, places = rows[compared], places[compared]
        if not len(rows):
            return
        self._signatures[rows] = batch.signatures[places]
        fresh = ~batch.owned[places]
        keys = batch.band_keys[places][fresh]
        owners = np.broadcast_to(rows[:, None], fresh.shape)[fresh]
        keys, first = np.unique(keys, return_index=True)
        self._band_table.add(keys, owners[first])

    def _take_rows(self, num: int) -> NDArray[np.int64]:
        needed = self._size + num
        if needed > len(self._seqs):
            room = max(needed, 2 * len(self._seqs))
            self._seqs = _moved(self._seqs[: self._size], room)
            self._signatures = _moved(self._signatures[: self._size], room)
        rows = np.arange(self._size, needed)
        self._size = needed
        return rows

    def _most_similar(
        self, batch: Comparison, owners: NDArray[np.int64]
    ) -> dict[int, tuple[float, int]]:
        """By row of the signature: similarity and negative seq of the best of its owners."""
        at, band = np.nonzero(batch.owned)
        if not len(at):
            return {}
        pairs = np.unique((at.astype(np.int64) << 32) | owners[at, band])
        at, rows = pairs >> 32, pairs & 0xFFFFFFFF
        same = (batch.signatures[at] == self._signatures[rows]).sum(axis=1)
        best: dict[int, tuple[float, int]] = {}
        for one, count, seq in zip(
            at.tolist(), same.tolist(), self._seqs[rows].tolist(), strict=True
        ):
            best[one] = max(best.get(one, (0.0, 0)), (count / NUM_PERM, -seq))
        return best

    def _follow(
        self,
        batch: Comparison,
        exact: NDArray[np.int64],
        similar: dict[int, tuple[float, int]],
        usable: NDArray[np.bool_],
    ) -> None:
        """Say what each sample is a duplicate of, in order.

        Samples that nothing else in the batch or the index resembles are passed over.
        """
        shared = _shared_keys(batch.band_keys, ~batch.owned)
        accepted: dict[int, int] = {}  # content key -> sample in the batch
        content, places, rows = batch.keys.tolist(), batch.position.tolist(), exact.tolist()
        threshold = self._threshold or 0.0
        known = np.fromiter({*similar, *shared}, np.int64)
        touched = (exact >= 0) | _repeated(batch.keys) | np.isin(batch.position, known)
        for at in np.flatnonzero(usable & touched).tolist():
            if rows[at] >= 0:
                batch.found[at] = Duplicate(int(self._seqs[rows[at]]))
                continue
            earlier = accepted.get(content[at])
            if earlier is not None:
                batch.found[at] = Duplicate(batch.seqs[earlier])
                continue
            place = places[at]
            if place >= 0:
                best = similar.get(place, (0.0, 0))
                keys = shared.get(place, ())
                for other in {batch.owners[key] for key in keys if key in batch.owners}:
                    same = batch.signatures[place] == batch.signatures[places[other]]
                    best = max(best, (int(same.sum()) / NUM_PERM, -batch.seqs[other]))
                if best[0] >= threshold and best[0] > 0:
                    batch.found[at] = Duplicate(-best[1], best[0])
                    continue
                for key in keys:
                    batch.owners.setdefault(key, at)
            accepted[content[at]] = at


def _moved(used: NDArray[Any], room: int) -> NDArray[Any]:
    """The rows in a larger array; its other pages take no memory until they are written."""
    larger = np.empty((room, *used.shape[1:]), used.dtype)
    larger[: len(used)] = used
    return larger


def _repeated(values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether the value occurs more than once."""
    order = np.argsort(values)
    same = values[order[1:]] == values[order[:-1]]
    found = np.zeros(len(values), bool)
    found[order[1:]] = same
    found[order[:-1]] |= same
    return found


def _shared_keys(keys: NDArray[np.uint64], fresh: NDArray[np.bool_]) -> dict[int, tuple[int, ...]]:
    """By row: its fresh keys that another row has too."""
    at, band = np.nonzero(fresh)
    if not len(at):
        return {}
    values = keys[at, band]
    several = _repeated(values)
    found: dict[int, tuple[int, ...]] = {}
    for one, key in zip(at[several].tolist(), values[several].tolist(), strict=True):
        found[one] = (*found.get(one, ()), key)
    return found
