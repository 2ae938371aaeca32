"""What the supervisor does next, as pure functions of rows, the clock and what processes do.

    rows of a run's workers + dead processes + now -> actions on workers

A slot without a live worker is filled again after a backoff that doubles with every unasked end
inside the breaker's window; more unasked ends than `breaker_restarts` trip the breaker. A live
worker that has not registered within `startup_s`, or has been silent for `lease_s`, is killed. One
that has said that it leaves beats no more: its process has `drain_deadline_s` to end.
Silence counts from the first look of this control plane at the earliest, so that workers which
lived on without one get the time to speak. Draining goes role by role, upstream first; at half of
the deadline everybody drains, at the deadline the rest is killed.

Nothing here does anything; `supervisor.py` carries the actions out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from control_plane.controller.slots import DRAIN_ORDER, Slot
from control_plane.store.tables import Run, Worker
from shared.config.schema import SupervisionSection
from shared.states import DesiredState, Role, RunState, WorkerState

FATAL_EXIT = 3


class Phase(Enum):
    """What a run wants of its workers."""

    WORK = auto()  # every slot filled, everybody runs
    HOLD = auto()  # nobody is started, those who live hold
    DRAIN = auto()  # everybody goes, in order, within the deadline
    CLEAR = auto()  # everybody goes now


@dataclass(frozen=True)
class Launch:
    """Fill the slot with a new incarnation."""

    slot: Slot
    restarts: int


@dataclass(frozen=True)
class End:
    """The process is gone: close its row."""

    worker_id: str
    reason: str
    exit_code: int | None
    failed: bool


@dataclass(frozen=True)
class Kill:
    """Kill the process and close its row."""

    worker_id: str
    reason: str


@dataclass(frozen=True)
class Want:
    """Tell the worker with its next heartbeat what is wanted; a drain also by signal."""

    worker_id: str
    desired: DesiredState


@dataclass(frozen=True)
class Trip:
    """The circuit breaker of a slot is open, or its worker failed for good."""

    slot: Slot
    message: str


Action = Launch | End | Kill | Want | Trip


@dataclass(frozen=True)
class Situation:
    """What decisions depend on beside the rows.

    `dead` maps the ids of launched workers whose process is gone to its exit code, if known.
    `heard` says when each live worker was first seen or last heard, `ended` when one ended during
    this attempt at the run; both as `Sightings` keeps them. `archiver_may_finish`: the archiver of
    a run that completes uploads what is left, however long it takes. All times are monotonic
    seconds of this process; those in the rows are for people.
    """

    now: float
    dead: Mapping[str, int | None]
    heard: Mapping[str, float]
    ended: Mapping[str, float]
    drain_from: float | None = None
    archiver_may_finish: bool = False


def phase_of(run: Run, *, shutting_down: bool = False) -> Phase:
    """What the run wants of its own workers (jobs have their own)."""
    state = RunState(run.state)
    if state is RunState.STOPPING and run.stop_mode == "now":
        return Phase.CLEAR
    if state in (RunState.PAUSED, RunState.BLOCKED):
        return Phase.DRAIN if shutting_down or run.drain_started_at is not None else Phase.HOLD
    if state in (RunState.STARTING, RunState.RUNNING):
        return Phase.DRAIN if shutting_down or run.drain_started_at is not None else Phase.WORK
    return Phase.DRAIN


def supervise(
    phase: Phase,
    slots: Sequence[Slot],
    workers: Sequence[Worker],
    policy: SupervisionSection,
    situation: Situation,
) -> list[Action]:
    """The actions due now; `workers` are all incarnations in order of launch."""
    actions: list[Action] = []
    live: list[Worker] = []
    for worker in workers:
        if worker.ended_at is None:
            ending = _ending(worker, policy, situation)
            actions.append(ending) if ending else live.append(worker)
    if phase is Phase.CLEAR:
        return [*actions, *(Kill(w.id, "stopped without a drain") for w in live)]
    if phase is Phase.DRAIN:
        return [*actions, *_drain(live, policy, situation)]
    desired = DesiredState.RUN if phase is Phase.WORK else DesiredState.PAUSE
    actions.extend(Want(w.id, desired) for w in live if w.desired != desired.value)
    if phase is Phase.WORK:
        for slot in slots:
            incarnations = [w for w in workers if slot.holds(w)]
            # A row that is about to be closed still counts: the next look fills its slot.
            if any(w.ended_at is None for w in incarnations):
                continue
            action = _fill(slot, incarnations, policy, situation)
            if action is not None:
                actions.append(action)
    return actions


def backoff_s(num_failures: int, policy: SupervisionSection) -> float:
    """Wait before the next start after `num_failures` unasked ends in the window."""
    if num_failures == 0:
        return 0.0
    return float(min(policy.backoff_s * 2.0 ** min(num_failures - 1, 30), policy.max_backoff_s))


def was_unasked(worker: Worker) -> bool:
    """Whether an ended worker ended although it was wanted."""
    return worker.desired not in (DesiredState.DRAIN.value, DesiredState.EXIT.value)


def all_registered(slots: Iterable[Slot], workers: Iterable[Worker]) -> bool:
    """Whether every slot has a live worker that has registered."""
    live = [w for w in workers if w.ended_at is None and w.registered_at is not None]
    return all(any(slot.holds(w) for w in live) for slot in slots)


def _ending(worker: Worker, policy: SupervisionSection, situation: Situation) -> End | Kill | None:
    if worker.id in situation.dead:
        code = situation.dead[worker.id]
        return End(worker.id, _exit_text(code), code, failed=code not in (0, None))
    silent_s = situation.now - situation.heard[worker.id]
    if worker.registered_at is None:
        if silent_s > policy.startup_s:
            return Kill(
                worker.id, f"did not register within supervision.startup_s ({policy.startup_s:g} s)"
            )
        return None
    if worker.state == WorkerState.EXITED.value:
        if silent_s > policy.drain_deadline_s:
            limit = f"supervision.drain_deadline_s ({policy.drain_deadline_s:g} s)"
            return Kill(worker.id, f"has left, but its process did not end within {limit}")
        return None
    if silent_s > policy.lease_s:
        return Kill(worker.id, f"silent for supervision.lease_s ({policy.lease_s:g} s)")
    return None


def _exit_text(code: int | None) -> str:
    if code is None:
        return "the process is gone"
    return f"killed by signal {-code}" if code < 0 else f"exited with code {code}"


def _fill(
    slot: Slot, incarnations: list[Worker], policy: SupervisionSection, situation: Situation
) -> Launch | Trip | None:
    if not incarnations:
        return Launch(slot, restarts=0)
    last = incarnations[-1]
    since = situation.now - policy.breaker_window_s
    ended = situation.ended
    failures = [w for w in incarnations if ended.get(w.id, -inf) >= since and was_unasked(w)]
    name = f"{slot.role.value} {slot.rank}"
    if failures and failures[-1].exit_code == FATAL_EXIT:
        cause = last.last_error or f"exited with code {FATAL_EXIT}; see its log"
        return Trip(slot, f"{name} failed: {cause}")
    if len(failures) > policy.breaker_restarts:
        cause = last.last_error or last.end_reason or "see its log"
        return Trip(
            slot,
            f"{name} ended {len(failures)} times within {policy.breaker_window_s:g} s and is not "
            f"started again; last: {cause}",
        )
    if failures and situation.now < ended[failures[-1].id] + backoff_s(len(failures), policy):
        return None
    return Launch(slot, restarts=last.restarts + (1 if was_unasked(last) else 0))


def _drain(live: list[Worker], policy: SupervisionSection, situation: Situation) -> list[Action]:
    begun = situation.drain_from if situation.drain_from is not None else situation.now
    elapsed_s = situation.now - begun
    actions: list[Action] = [
        Kill(w.id, "not needed any more") for w in live if w.registered_at is None
    ]
    if elapsed_s > policy.drain_deadline_s:
        limit = f"supervision.drain_deadline_s ({policy.drain_deadline_s:g} s)"
        late = [w for w in live if w.registered_at is not None]
        if situation.archiver_may_finish:
            late = [w for w in late if w.role != Role.ARCHIVER.value]
        actions.extend(Kill(w.id, f"did not drain within {limit}") for w in late)
    gone = {action.worker_id for action in actions if isinstance(action, Kill)}
    # Who has said that it leaves is drained; its process may take its time to end.
    draining = [w for w in live if w.id not in gone and w.state != WorkerState.EXITED.value]
    if draining and elapsed_s <= policy.drain_deadline_s / 2:
        first = min(DRAIN_ORDER.index(Role(w.role)) for w in draining)
        draining = [w for w in draining if DRAIN_ORDER.index(Role(w.role)) == first]
    actions.extend(
        Want(w.id, DesiredState.DRAIN)
        for w in draining
        if w.desired not in (DesiredState.DRAIN.value, DesiredState.EXIT.value)
    )
    return actions
