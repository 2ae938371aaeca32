"""Supervision without processes: what is done for given rows, clock and deaths."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.controller.decisions import (
    Action,
    End,
    Kill,
    Launch,
    Phase,
    Situation,
    Trip,
    Want,
    backoff_s,
    phase_of,
    supervise,
)
from control_plane.controller.slots import Slot
from control_plane.store.tables import Worker
from shared.states import DesiredState, Role, RunState
from tests.unit.control_plane.controller.rows import NOW, config, ended, run, worker

POLICY = config().supervision
SLOT = Slot(Role.BATCHER, 0)


def decide(
    phase: Phase,
    slots: list[Slot],
    rows: list[Worker],
    *,
    lease_from: float = NOW - 400,
    attempt_from: float = NOW - 400,
    **fields: Any,
) -> list[Action]:
    """The actions, when workers were heard and seen to end at the times in their rows."""
    heard = {w.id: max(w.heartbeat_at or w.launched_at, lease_from) for w in rows}
    ended = {w.id: w.ended_at for w in rows if (w.ended_at or 0) >= attempt_from}
    given: dict[str, Any] = {"now": NOW, "dead": {}, "heard": heard, "ended": ended}
    return supervise(phase, slots, rows, POLICY, Situation(**{**given, **fields}))


def test_an_empty_slot_is_filled() -> None:
    assert decide(Phase.WORK, [SLOT], []) == [Launch(SLOT, restarts=0)]


def test_a_healthy_worker_is_left_alone() -> None:
    assert decide(Phase.WORK, [SLOT], [worker("batcher")]) == []


def test_a_dead_process_is_closed_first_and_replaced_at_the_next_look() -> None:
    row = worker("batcher")
    actions = decide(Phase.WORK, [SLOT], [row], dead={row.id: -9})
    assert actions == [End(row.id, "killed by signal 9", -9, failed=True)]
    row.ended_at, row.exit_code = NOW, -9
    assert decide(Phase.WORK, [SLOT], [row]) == []  # backoff
    assert decide(Phase.WORK, [SLOT], [row], now=NOW + 1.1) == [Launch(SLOT, restarts=1)]


def test_backoff_doubles_up_to_its_limit() -> None:
    assert [backoff_s(n, POLICY) for n in range(7)] == [0, 1, 2, 4, 8, 8, 8]


def test_the_breaker_trips_after_too_many_unasked_ends() -> None:
    rows = [ended("batcher", 90 - 20 * n, n, last_error="boom") for n in range(4)]
    [action] = decide(Phase.WORK, [SLOT], rows)
    assert isinstance(action, Trip)
    assert action.message.startswith("batcher 0 ended 4 times within 100 s")
    assert action.message.endswith("boom")


@pytest.mark.parametrize(
    "harmless",
    [
        {"desired": "drain"},  # we asked for it
        {"ended_at": NOW - 120},  # outside of the window
    ],
)
def test_the_breaker_counts_only_unasked_ends_in_its_window(harmless: dict[str, object]) -> None:
    rows = [ended("batcher", 90 - 20 * n, n, **(harmless if n == 0 else {})) for n in range(4)]
    assert decide(Phase.WORK, [SLOT], rows) == [Launch(SLOT, restarts=1)]


def test_a_new_attempt_forgets_earlier_failures() -> None:
    rows = [ended("batcher", 90 - 20 * n, n) for n in range(4)]
    assert decide(Phase.WORK, [SLOT], rows, attempt_from=NOW - 5) == [Launch(SLOT, restarts=1)]


def test_a_clean_exit_that_nobody_asked_for_counts_too() -> None:
    rows = [ended("batcher", 90 - 20 * n, n, exit_code=0) for n in range(4)]
    [action] = decide(Phase.WORK, [SLOT], rows)
    assert isinstance(action, Trip)


def test_a_fatal_exit_trips_at_once() -> None:
    row = ended("batcher", 1, exit_code=3, last_error="bad data")
    [action] = decide(Phase.WORK, [SLOT], [row])
    assert action == Trip(SLOT, "batcher 0 failed: bad data")


def test_silence_kills_and_counts_from_the_start_of_the_control_plane() -> None:
    row = worker("batcher", heartbeat_at=NOW - 300)
    [action] = decide(Phase.WORK, [SLOT], [row])
    assert isinstance(action, Kill)
    assert "lease_s" in action.reason
    assert decide(Phase.WORK, [SLOT], [row], lease_from=NOW - 5) == []


def test_a_worker_that_never_registers_is_killed() -> None:
    row = worker("batcher", registered_at=None, heartbeat_at=None, launched_at=NOW - 61)
    [action] = decide(Phase.WORK, [SLOT], [row])
    assert isinstance(action, Kill)
    assert "startup_s" in action.reason
    row.launched_at = NOW - 59
    assert decide(Phase.WORK, [SLOT], [row]) == []


def test_hold_starts_nobody_and_pauses_those_who_live() -> None:
    slots = [SLOT, Slot(Role.GENERATOR, 0)]
    actions = decide(Phase.HOLD, slots, [worker("batcher")])
    assert actions == [Want("batcher-0-0", DesiredState.PAUSE)]
    paused = worker("batcher", desired="pause")
    assert decide(Phase.WORK, [SLOT], [paused]) == [Want("batcher-0-0", DesiredState.RUN)]


ROLES = ["drafter_trainer", "batcher", "archiver", "generator", "target_forward"]


def drained(drain_from: float, rows: list, **fields: object) -> list:
    return decide(Phase.DRAIN, [], rows, drain_from=drain_from, **fields)


def test_drains_upstream_first() -> None:
    rows = [worker(role) for role in ROLES]
    order = []
    while rows:
        [action] = drained(NOW, rows)
        assert action == Want(action.worker_id, DesiredState.DRAIN)
        order.append(action.worker_id.rsplit("-", 2)[0])
        rows = [row for row in rows if row.id != action.worker_id]
    assert order == ["generator", "batcher", "target_forward", "drafter_trainer", "archiver"]


def test_the_next_role_waits_while_the_first_one_drains() -> None:
    rows = [worker("generator", desired="drain"), worker("batcher")]
    assert drained(NOW - 5, rows) == []


def test_who_has_left_holds_nobody_up_but_does_not_outlive_the_deadline() -> None:
    rows = [worker("generator", desired="drain", state="exited"), worker("batcher")]
    assert drained(NOW - 5, rows) == [Want("batcher-0-0", DesiredState.DRAIN)]
    assert [type(a) for a in drained(NOW - 21, rows)] == [Kill, Kill]


def test_at_half_of_the_deadline_everybody_drains_and_after_it_the_rest_is_killed() -> None:
    rows = [worker("generator", desired="drain"), worker("batcher"), worker("archiver")]
    assert [type(a) for a in drained(NOW - 11, rows)] == [Want, Want]
    late = drained(NOW - 21, rows)
    assert [type(a) for a in late] == [Kill, Kill, Kill]
    patient = drained(NOW - 21, rows, archiver_may_finish=True)
    assert [type(a) for a in patient] == [Kill, Kill, Want]


def test_a_drain_kills_who_has_not_registered() -> None:
    row = worker("batcher", registered_at=None, launched_at=NOW - 1)
    assert drained(NOW, [row]) == [Kill(row.id, "not needed any more")]


def test_clear_kills_everybody_at_once() -> None:
    rows = [worker(role) for role in ROLES]
    actions = decide(Phase.CLEAR, [], rows)
    assert [type(a) for a in actions] == [Kill] * len(ROLES)


@pytest.mark.parametrize(
    ("state", "fields", "shutting_down", "phase"),
    [
        (RunState.STARTING, {}, False, Phase.WORK),
        (RunState.RUNNING, {}, False, Phase.WORK),
        (RunState.RUNNING, {"drain_started_at": NOW}, False, Phase.DRAIN),
        (RunState.RUNNING, {}, True, Phase.DRAIN),
        (RunState.PAUSED, {}, False, Phase.HOLD),
        (RunState.PAUSED, {"drain_started_at": NOW}, False, Phase.DRAIN),
        (RunState.BLOCKED, {}, False, Phase.HOLD),
        (RunState.BLOCKED, {}, True, Phase.DRAIN),
        (RunState.STOPPING, {"stop_mode": "drain"}, False, Phase.DRAIN),
        (RunState.STOPPING, {"stop_mode": "now"}, False, Phase.CLEAR),
        (RunState.FAILED, {}, False, Phase.DRAIN),
        (RunState.QUEUED, {}, False, Phase.DRAIN),
    ],
)
def test_phase(state: RunState, fields: dict, shutting_down: bool, phase: Phase) -> None:
    assert phase_of(run(state, **fields), shutting_down=shutting_down) is phase


@pytest.mark.parametrize("phase", [Phase.WORK, Phase.DRAIN])
def test_who_has_left_is_not_silent_but_its_process_must_end(phase: Phase) -> None:
    wanted = "run" if phase is Phase.WORK else "drain"
    row = worker("batcher", state="exited", desired=wanted, heartbeat_at=NOW - 15)
    assert decide(phase, [SLOT], [row], drain_from=NOW - 15) == []
    [action] = decide(phase, [SLOT], [row], now=NOW + 6, drain_from=NOW)
    assert isinstance(action, Kill)
    assert action.reason == (
        "has left, but its process did not end within supervision.drain_deadline_s (20 s)"
    )
