"""When a run moves to its next state, as a pure function of its rows.

    starting --all registered--> running --work finished--> [evaluation] --> drain --> completed
    stopping --nobody left--> stopped          paused, shut down --nobody left--> paused, at rest

The work of a run is finished when its last role says so: the trainer, or the batcher when the run
does not train. A final evaluation that failed stops being the run's final one when the run is
resumed (evaluations.retire_failed), so the next attempt makes another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from control_plane.controller.decisions import all_registered
from control_plane.controller.slots import Slot
from control_plane.store.tables import Evaluation, Run, Worker
from shared.config import RunConfig
from shared.states import Role, RunEvent, RunState, Stage, WorkerState


@dataclass(frozen=True)
class Move:
    """A transition of the run."""

    event: RunEvent
    reason: str | None = None


@dataclass(frozen=True)
class StartFinalEvaluation:
    """Measure the last checkpoint before everybody leaves."""


@dataclass(frozen=True)
class BeginDrain:
    """Everything is done: let the workers go."""


@dataclass(frozen=True)
class EndDrain:
    """The workers of a run that stays paused have gone."""


Step = Move | StartFinalEvaluation | BeginDrain | EndDrain


def next_step(
    run: Run,
    config: RunConfig,
    slots: Sequence[Slot],
    workers: Sequence[Worker],
    evaluations: Sequence[Evaluation],
    *,
    newest_checkpoint_step: int | None,
    evaluator_lives: bool = False,
) -> Step | None:
    """The step due now, if any; `workers` are those of the run itself, without jobs.

    A run that is stopped waits for its evaluator, too: stopped means that nothing computes.
    """
    state = RunState(run.state)
    live = [w for w in workers if w.ended_at is None]
    if state is RunState.STARTING and run.drain_started_at is None:
        return Move(RunEvent.READY) if all_registered(slots, workers) else None
    if state is RunState.STOPPING:
        return None if live or evaluator_lives else Move(RunEvent.DRAINED, run.reason)
    if state in (RunState.PAUSED, RunState.BLOCKED):
        return EndDrain() if run.drain_started_at is not None and not live else None
    if state is not RunState.RUNNING:
        return None
    if run.drain_started_at is not None:
        return None if live else Move(RunEvent.COMPLETE)
    if not work_is_finished(live, config, newest_checkpoint_step):
        return None
    if Stage.EVALUATE not in config.stages:
        return BeginDrain()
    return _after_training(evaluations)


def work_is_finished(
    live: Sequence[Worker], config: RunConfig, newest_checkpoint_step: int | None
) -> bool:
    """Whether the last role is done, and the checkpoint it stands at has been reported."""
    is_training = Stage.TRAIN in config.stages
    role = Role.DRAFTER_TRAINER if is_training else Role.BATCHER
    last = [w for w in live if w.role == role.value]
    if not last or any(w.state != WorkerState.FINISHED.value for w in last):
        return False
    if not is_training:
        return True
    step = max(w.progress.get("step", 0) for w in last)
    return newest_checkpoint_step is not None and newest_checkpoint_step >= step


def _after_training(evaluations: Sequence[Evaluation]) -> Step | None:
    final = [e for e in evaluations if e.final]
    if not final:
        return StartFinalEvaluation()
    if any(e.state == "completed" for e in final):
        return BeginDrain()
    last = final[-1]
    if last.state == "failed":
        return Move(RunEvent.FAIL, f"the final evaluation failed: {last.problem}")
    return None
