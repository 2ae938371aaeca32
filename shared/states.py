"""Roles, stages, and the run state machine, as pure data and functions.

    queued -> starting -> running <-> paused        running -> completed
    running -> stopping -> stopped                  any active state -> failed
    running -> blocked (a quality gate; `resume` goes on, with the override recorded)

A stopped, failed, blocked or paused run resumes from what it has. Every change of a run's state
goes through `next_state`, so an action is either legal or raises `IllegalTransition` with the
current state and the allowed actions.
"""

from __future__ import annotations

from enum import StrEnum

from shared.errors import IllegalTransition


class Role(StrEnum):
    """Worker roles, spelled the same everywhere."""

    GENERATOR = "generator"
    BATCHER = "batcher"
    TARGET_FORWARD = "target_forward"
    DRAFTER_TRAINER = "drafter_trainer"
    ARCHIVER = "archiver"
    EVALUATOR = "evaluator"


class Stage(StrEnum):
    """Stages of a run; any subset, overlapped by default."""

    GENERATE = "generate"
    TOKENISE = "tokenise"
    TRAIN = "train"
    EVALUATE = "evaluate"


class RunState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    BLOCKED = "blocked"
    STOPPING = "stopping"
    STOPPED = "stopped"
    COMPLETED = "completed"
    FAILED = "failed"


class RunAction(StrEnum):
    """What a person can ask of a run."""

    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    DELETE = "delete"
    EXPORT = "export"
    EVALUATE = "evaluate"


class RunEvent(StrEnum):
    """What moves a run from one state to another: actions of people, and facts."""

    LAUNCH = "launch"  # the scheduler starts the workers
    READY = "ready"  # every worker of the run has registered
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    DRAINED = "drained"  # every worker has drained and left
    BLOCK = "block"  # a quality gate closed
    COMPLETE = "complete"  # every stage is done
    FAIL = "fail"  # a worker's circuit breaker opened, or a fatal error


_TRANSITIONS: dict[tuple[RunState, RunEvent], RunState] = {
    (RunState.QUEUED, RunEvent.LAUNCH): RunState.STARTING,
    (RunState.QUEUED, RunEvent.STOP): RunState.STOPPED,
    (RunState.QUEUED, RunEvent.FAIL): RunState.FAILED,
    (RunState.STARTING, RunEvent.READY): RunState.RUNNING,
    (RunState.STARTING, RunEvent.STOP): RunState.STOPPING,
    (RunState.STARTING, RunEvent.PAUSE): RunState.PAUSED,
    (RunState.STARTING, RunEvent.BLOCK): RunState.BLOCKED,
    (RunState.STARTING, RunEvent.FAIL): RunState.FAILED,
    (RunState.RUNNING, RunEvent.PAUSE): RunState.PAUSED,
    (RunState.RUNNING, RunEvent.STOP): RunState.STOPPING,
    (RunState.RUNNING, RunEvent.BLOCK): RunState.BLOCKED,
    (RunState.RUNNING, RunEvent.COMPLETE): RunState.COMPLETED,
    (RunState.RUNNING, RunEvent.FAIL): RunState.FAILED,
    (RunState.PAUSED, RunEvent.RESUME): RunState.STARTING,
    (RunState.PAUSED, RunEvent.STOP): RunState.STOPPING,
    (RunState.PAUSED, RunEvent.FAIL): RunState.FAILED,
    (RunState.BLOCKED, RunEvent.RESUME): RunState.STARTING,
    (RunState.BLOCKED, RunEvent.STOP): RunState.STOPPING,
    (RunState.BLOCKED, RunEvent.FAIL): RunState.FAILED,
    (RunState.STOPPING, RunEvent.DRAINED): RunState.STOPPED,
    (RunState.STOPPING, RunEvent.STOP): RunState.STOPPING,
    (RunState.STOPPING, RunEvent.FAIL): RunState.FAILED,
    (RunState.STOPPED, RunEvent.RESUME): RunState.QUEUED,
    (RunState.FAILED, RunEvent.RESUME): RunState.QUEUED,
}

ENDED_STATES = frozenset({RunState.STOPPED, RunState.COMPLETED, RunState.FAILED})
ACTIVE_STATES = frozenset(RunState) - ENDED_STATES - {RunState.QUEUED}

_ACTION_EVENTS = {
    RunAction.STOP: RunEvent.STOP,
    RunAction.PAUSE: RunEvent.PAUSE,
    RunAction.RESUME: RunEvent.RESUME,
}


def allowed_actions(state: RunState) -> list[RunAction]:
    """Actions a person can take in `state`, in a fixed order."""
    actions = [a for a, event in _ACTION_EVENTS.items() if (state, event) in _TRANSITIONS]
    if state in ENDED_STATES:
        actions.append(RunAction.DELETE)
    return [*actions, RunAction.EXPORT, RunAction.EVALUATE]


def next_state(state: RunState, event: RunEvent) -> RunState:
    """The state that follows `event`; raises IllegalTransition when there is none."""
    try:
        return _TRANSITIONS[state, event]
    except KeyError:
        allowed = ", ".join(allowed_actions(state)) or "none"
        raise IllegalTransition(
            f"a run in state {state.value!r} does not take {event.value!r}; allowed: {allowed}"
        ) from None


class WorkerState(StrEnum):
    """What a worker says of itself in a heartbeat."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    FINISHED = "finished"  # its work is done; alive, still serving replays
    EXITED = "exited"
    FAILED = "failed"


class DesiredState(StrEnum):
    """What the control plane wants of a worker; sent with every heartbeat answer."""

    RUN = "run"
    PAUSE = "pause"  # hold, keep all state in memory
    DRAIN = "drain"  # finish what is in flight, save, exit within the deadline
    EXIT = "exit"  # leave now; also the answer to a superseded incarnation
