"""What leases and backoff go by: times this process saw, whatever the rows say."""

from __future__ import annotations

from control_plane.controller.sightings import Sightings
from tests.unit.control_plane.controller.rows import NOW, ended, worker

# A row of the time before the wall clock was set back by an hour.
FUTURE = NOW + 3600


def test_a_hung_worker_is_silent_from_its_last_heartbeat_whatever_its_row_says() -> None:
    row = worker("batcher", heartbeat_at=FUTURE, registered_at=FUTURE, launched_at=FUTURE)
    sightings = Sightings()
    sightings.look([row], {}, 100.0)
    assert sightings.heard == {row.id: 100.0}
    sightings.look([row], {row.id: 107.0}, 108.0)
    sightings.look([row], {row.id: 107.0}, 120.0)
    assert sightings.heard == {row.id: 107.0}


def test_an_end_is_seen_once_and_only_in_its_attempt() -> None:
    before, row = ended("batcher", 5), worker("batcher", number=1)
    sightings = Sightings()
    sightings.look([before, row], {}, 100.0)
    row.ended_at = NOW - 7200  # the clock was set back
    for now_s in (101.0, 102.0):
        sightings.look([before, row], {}, now_s)
    assert (sightings.heard, sightings.ended) == ({}, {row.id: 101.0})
    never_seen_alive = ended("batcher", 0, number=2)
    sightings.look([before, row, never_seen_alive], {}, 103.0)
    assert sightings.ended[never_seen_alive.id] == 103.0
    sightings.new_attempt()
    sightings.look([before, row, never_seen_alive], {}, 104.0)
    assert sightings.ended == {}
