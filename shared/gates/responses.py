"""How often each answer was given, and which one most often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.gates.key_table import KeyTable


@dataclass(frozen=True)
class TopResponse:
    """The most frequent answer; of several, the one that was so first."""

    count: int = 0
    key: int = 0
    text: str = ""


class ResponseCounts:
    """Counts by answer key. A batch is begun, its answers counted in order, then committed."""

    def __init__(self) -> None:
        self.top = TopResponse()
        self._rows = KeyTable()
        self._counts = np.zeros(1 << 10, np.int32)  # by row
        self._repeats: Counter[int] = Counter()  # by answer, of repeated prompts
        self._open: dict[int, int] = {}  # counts of the batch's answers so far
        self._before: dict[int, int] = {}

    @property
    def top_repeats(self) -> int:
        """How many of the most frequent answers came from a repeated prompt."""
        return self._repeats[self.top.key]

    @property
    def num_bytes(self) -> int:
        return self._rows.num_bytes + self._counts.nbytes

    def begin(self, keys: NDArray[np.uint64]) -> None:
        """Look up what the batch's answers were counted before."""
        rows = self._rows.find(keys)
        known = rows >= 0
        counts = self._counts[rows[known]]
        self._before = dict(zip(keys[known].tolist(), counts.tolist(), strict=True))

    def count(self, key: int, text: str | None, *, repeat: bool) -> None:
        """One more answer of the batch; `repeat` when its prompt was a repeated one."""
        count = self._open.get(key) or self._before.get(key, 0)
        self._open[key] = count + 1
        if repeat:
            self._repeats[key] += 1
        if count + 1 > self.top.count:
            self.top = TopResponse(count + 1, key, text or "")

    def count_all(
        self,
        keys: NDArray[np.uint64],
        answered: Sequence[int],
        texts: Sequence[str | None],
        repeats: set[int],
    ) -> None:
        """All answers of the batch, those at `answered`; positions in `repeats` are repeated."""
        if not answered:
            return
        given = keys[answered]
        unique, inverse = np.unique(given, return_inverse=True)
        before = np.array([self._before.get(key, 0) for key in unique.tolist()], np.int64)
        in_batch = np.bincount(inverse)
        for at in repeats.intersection(answered):
            self._repeats[int(keys[at])] += 1
        after = before + in_batch
        self._open = dict(zip(unique.tolist(), after.tolist(), strict=True))
        if int(after.max()) <= self.top.count:
            return
        # Of the answers that became the most frequent one, the first to reach its count stays.
        order = np.argsort(inverse, kind="stable")
        firsts = np.cumsum(in_batch) - in_batch
        counts = np.empty(len(given), np.int64)
        counts[order] = before[inverse[order]] + np.arange(len(given)) - firsts[inverse[order]] + 1
        first = int(np.argmax(counts))
        self.top = TopResponse(int(counts[first]), int(given[first]), texts[answered[first]] or "")

    def commit(self) -> None:
        """Remember what was counted since `begin`."""
        keys = np.fromiter(self._open.keys(), np.uint64, len(self._open))
        counts = np.fromiter(self._open.values(), np.int32, len(self._open))
        self._open, self._before = {}, {}
        rows = self._rows.find(keys)
        new = np.flatnonzero(rows < 0)
        rows[new] = np.arange(len(self._rows), len(self._rows) + len(new))
        self._rows.add(keys[new], rows[new])
        if len(self._rows) > len(self._counts):
            larger = np.zeros(max(len(self._rows), 2 * len(self._counts)), np.int32)
            larger[: len(self._counts)] = self._counts
            self._counts = larger
        self._counts[rows] = counts
