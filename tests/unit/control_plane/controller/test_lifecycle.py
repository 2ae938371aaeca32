"""Steps of a run: ready, finished, evaluated, drained."""

from __future__ import annotations

from typing import Any

from control_plane.controller.lifecycle import (
    BeginDrain,
    EndDrain,
    Move,
    StartFinalEvaluation,
    Step,
    next_step,
)
from control_plane.controller.slots import run_slots
from control_plane.store.tables import Evaluation, Run, Worker
from shared.config import RunConfig
from shared.states import RunEvent, RunState
from tests.unit.control_plane.controller.rows import NOW, config, evaluation, run, worker

CONFIG = config()
ROLES = ("generator", "batcher", "target_forward", "drafter_trainer")


def everybody(**trainer: Any) -> list[Worker]:
    rows = [worker(role) for role in ROLES]
    for name, value in trainer.items():
        setattr(rows[-1], name, value)
    return rows


def step_of(
    row: Run,
    workers: list[Worker],
    evaluations: tuple[Evaluation, ...] = (),
    *,
    checkpoint: int | None = 30,
    of: RunConfig = CONFIG,
    evaluator_lives: bool = False,
) -> Step | None:
    return next_step(
        row,
        of,
        run_slots(of),
        workers,
        evaluations,
        newest_checkpoint_step=checkpoint,
        evaluator_lives=evaluator_lives,
    )


FINISHED = {"state": "finished", "progress": {"step": 30}}


def test_ready_when_every_slot_has_registered() -> None:
    starting = run(RunState.STARTING)
    assert step_of(starting, everybody()[:3]) is None
    assert step_of(starting, everybody(registered_at=None)) is None
    assert step_of(starting, everybody()) == Move(RunEvent.READY)


def test_work_goes_on_until_the_trainer_is_finished_and_its_checkpoint_known() -> None:
    running = run(RunState.RUNNING)
    assert step_of(running, everybody()) is None
    assert step_of(running, everybody(**FINISHED), checkpoint=20) is None
    assert step_of(running, everybody(**FINISHED), checkpoint=None) is None
    assert step_of(running, everybody(**FINISHED)) == StartFinalEvaluation()


def test_the_final_evaluation_is_waited_for_then_everybody_drains() -> None:
    running = run(RunState.RUNNING)
    workers = everybody(**FINISHED)
    assert step_of(running, workers, (evaluation("running"),)) is None
    # The wall clock was set back since: whose it is does not depend on times.
    assert step_of(running, workers, (evaluation("queued", created_at=NOW - 9000),)) is None
    assert step_of(running, workers, (evaluation("completed"),)) == BeginDrain()


def test_a_failed_final_evaluation_fails_the_run_but_not_its_next_attempt() -> None:
    running = run(RunState.RUNNING)
    workers = everybody(**FINISHED)
    failed = evaluation("failed", problem="no GPU")
    step = step_of(running, workers, (failed,))
    assert step == Move(RunEvent.FAIL, "the final evaluation failed: no GPU")
    earlier = evaluation("failed", final=False)  # as evaluations.retire_failed leaves it
    assert step_of(running, workers, (earlier,)) == StartFinalEvaluation()


def test_other_evaluations_are_not_the_final_one() -> None:
    other = evaluation("completed", final=False)
    step = step_of(run(RunState.RUNNING), everybody(**FINISHED), (other,))
    assert step == StartFinalEvaluation()


def test_without_evaluate_the_drain_begins_at_once_and_ends_in_completed() -> None:
    plain = config(stages=["generate", "tokenise", "train"])
    running = run(RunState.RUNNING)
    assert step_of(running, everybody(**FINISHED), of=plain) == BeginDrain()
    running.drain_started_at = NOW
    assert step_of(running, everybody(**FINISHED), of=plain) is None
    assert step_of(running, [worker("batcher", ended_at=NOW)], of=plain) == Move(RunEvent.COMPLETE)


def test_without_train_the_batcher_is_the_last_role() -> None:
    plain = config(stages=["generate", "tokenise"])
    rows = [worker("generator"), worker("batcher")]
    assert step_of(run(RunState.RUNNING), rows, of=plain, checkpoint=None) is None
    rows[1].state = "finished"
    step = step_of(run(RunState.RUNNING), rows, of=plain, checkpoint=None)
    assert step == BeginDrain()


def test_stopping_ends_with_the_last_worker() -> None:
    stopping = run(RunState.STOPPING, reason="stopped")
    assert step_of(stopping, everybody()) is None
    assert step_of(stopping, [], evaluator_lives=True) is None
    assert step_of(stopping, []) == Move(RunEvent.DRAINED, "stopped")


def test_a_paused_run_comes_to_rest_after_a_shutdown() -> None:
    paused = run(RunState.PAUSED, drain_started_at=NOW)
    assert step_of(paused, everybody()) is None
    assert step_of(paused, []) == EndDrain()
    assert step_of(run(RunState.PAUSED), []) is None
