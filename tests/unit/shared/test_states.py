"""The run state machine: legal paths, illegal ones, and the actions each state offers."""

import pytest

from shared.errors import IllegalTransition
from shared.states import (
    ACTIVE_STATES,
    ENDED_STATES,
    RunAction,
    RunEvent,
    RunState,
    allowed_actions,
    next_state,
)


def walk(*events: RunEvent) -> RunState:
    state = RunState.QUEUED
    for event in events:
        state = next_state(state, event)
    return state


def test_the_usual_paths() -> None:
    started = (RunEvent.LAUNCH, RunEvent.READY)
    assert walk(*started, RunEvent.COMPLETE) is RunState.COMPLETED
    assert walk(*started, RunEvent.STOP, RunEvent.DRAINED) is RunState.STOPPED
    assert walk(*started, RunEvent.STOP, RunEvent.STOP) is RunState.STOPPING
    assert walk(*started, RunEvent.PAUSE, RunEvent.RESUME) is RunState.STARTING
    assert walk(*started, RunEvent.BLOCK, RunEvent.RESUME) is RunState.STARTING
    assert walk(*started, RunEvent.FAIL, RunEvent.RESUME) is RunState.QUEUED
    assert walk(RunEvent.STOP) is RunState.STOPPED


@pytest.mark.parametrize("event", list(RunEvent))
def test_a_completed_run_takes_nothing(event: RunEvent) -> None:
    with pytest.raises(IllegalTransition, match="completed"):
        next_state(RunState.COMPLETED, event)


def test_every_active_run_can_fail_and_every_illegal_step_names_the_allowed_ones() -> None:
    for state in ACTIVE_STATES:
        assert next_state(state, RunEvent.FAIL) is RunState.FAILED
    with pytest.raises(IllegalTransition, match="allowed: resume"):
        next_state(RunState.STOPPED, RunEvent.PAUSE)


def test_offered_actions_are_exactly_the_legal_ones() -> None:
    events = {
        RunAction.STOP: RunEvent.STOP,
        RunAction.PAUSE: RunEvent.PAUSE,
        RunAction.RESUME: RunEvent.RESUME,
    }
    for state in RunState:
        offered = allowed_actions(state)
        for action, event in events.items():
            try:
                next_state(state, event)
            except IllegalTransition:
                assert action not in offered
            else:
                assert action in offered
        assert (RunAction.DELETE in offered) == (state in ENDED_STATES)
