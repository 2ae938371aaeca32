"""When this control plane heard workers and saw them end: what leases and backoff go by.

    rows at each look, arrivals of heartbeats -> heard, ended (monotonic seconds)

The times in the rows are wall-clock times, for people: the wall clock of a machine may be set back
or forward at any moment, so no decision compares them. What an earlier control plane heard or saw
counts for nothing: workers that it left get the time to speak.

Invariants: a live row has a time in `heard`, from the first look at it on; a row has one in `ended`
exactly if it ended during this attempt at the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from control_plane.store.tables import Worker


class Sightings:
    """Of one run's workers, those of jobs too. Times are monotonic seconds, by worker id."""

    def __init__(self) -> None:
        self.heard: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self._earlier: set[str] = set()
        self._is_new_attempt = True

    def new_attempt(self) -> None:
        """What has ended until the next look belongs to the attempt before."""
        self._is_new_attempt = True

    def look(self, rows: Iterable[Worker], arrivals: Mapping[str, float], now_s: float) -> None:
        """Take in all rows of the run, and when heartbeats of them arrived last."""
        if self._is_new_attempt:
            self._is_new_attempt = False
            self._earlier = {row.id for row in rows if row.ended_at is not None}
            self.ended.clear()
        for row in rows:
            if row.ended_at is None:
                self.heard[row.id] = arrivals.get(row.id, self.heard.get(row.id, now_s))
            elif row.id not in self._earlier:
                self.ended.setdefault(row.id, now_s)
                self.heard.pop(row.id, None)
