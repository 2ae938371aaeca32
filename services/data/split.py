"""Held-out prompts, chosen by content hash before anything is generated.

The choice depends on the contents alone: the contents whose salted hash is smallest are held out.
So neither the order of the rows nor the number of repeats matters, a repeat of a held-out
conversation never trains, and a longer file of the same kind keeps most of the choice.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from services.data.mapped import DigestCounts
from services.data.prompts import PromptRow
from services.data.spool import PromptRows
from shared.errors import DataError


@dataclass(frozen=True)
class PromptSplit:
    """`training` keeps file order and repeats; `held_out` has each content once, in file order."""

    training: PromptRows
    held_out: PromptRows
    num_bad_rows: int


def num_held_out(num_contents: int, *, share: float, at_most: int) -> int:
    """How many of so many distinct contents are held out.

    DataError when nothing would be left to train on.
    """
    count = min(at_most, round(share * num_contents))
    if count and count == num_contents:
        raise DataError(
            f"data.held_out_share {share} and data.max_held_out {at_most} hold out all "
            f"{count} prompts; lower one of them or give more prompts"
        )
    return count


def held_out_ids(contents: DigestCounts, count: int) -> list[int]:
    """The ids of the `count` contents to hold out."""
    return heapq.nsmallest(count, range(len(contents)), key=lambda one: _rank(contents.digest(one)))


class HeldOutRows:
    """Picks the held-out rows out of a stream; holds at most `at_most` rows."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._heap: list[tuple[int, int, PromptRow]] = []  # worst rank first

    def see(self, rows: Iterable[PromptRow]) -> Iterator[PromptRow]:
        """Pass rows through."""
        for row in rows:
            if row.occurrence == 0 and self._at_most:
                rank = int.from_bytes(_rank(bytes.fromhex(row.sha256)), "big")
                if len(self._heap) < self._at_most:
                    heapq.heappush(self._heap, (-rank, row.index, row))
                elif -rank > self._heap[0][0]:
                    heapq.heapreplace(self._heap, (-rank, row.index, row))
            yield row

    def best(self, count: int) -> list[PromptRow]:
        """The first `count` of the choice, in file order."""
        chosen = heapq.nlargest(count, self._heap)
        return sorted((row for _, _, row in chosen), key=lambda row: row.index)


def _rank(digest: bytes) -> bytes:
    return hashlib.sha256(f"held out: {digest.hex()}".encode()).digest()
