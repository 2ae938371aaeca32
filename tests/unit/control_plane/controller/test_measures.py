"""Progress, rates, queues, the bottleneck sentence and the time left."""

from __future__ import annotations

import pytest

from control_plane.controller.measures import (
    EtaEstimator,
    bottleneck,
    current_stage,
    merge_progress,
    merge_queues,
    throughput,
)
from shared.api.runs import Progress
from shared.states import Stage
from tests.unit.control_plane.controller.rows import NOW, ended, worker

ALL = list(Stage)


def test_progress_keeps_what_a_fresh_worker_has_not_reported_yet() -> None:
    known = {"step": 10, "completions_done": 5}
    rows = [
        worker("drafter_trainer", progress={}),
        worker("generator", progress={"completions_done": 6, "next_micro_batch_id": 3}),
    ]
    assert merge_progress(known, rows) == {"step": 10, "completions_done": 6}


def test_progress_includes_the_last_words_of_the_newest_incarnation() -> None:
    rows = [
        ended("drafter_trainer", 50, number=0, progress={"step": 99}),
        ended("drafter_trainer", 5, number=1, progress={"step": 56}),
        ended("evaluator", 5, job_id="eval-1", progress={"step": 1}),
    ]
    assert merge_progress({"step": 44}, rows) == {"step": 56}


def test_rates_are_summed_by_stage() -> None:
    rows = [
        worker("target_forward", 0, metrics={"tokens_per_s": 100.0}),
        worker("target_forward", 1, metrics={"tokens_per_s": 50.0}),
        worker("batcher", metrics={"tokens_per_s": 9.0}),
    ]
    assert throughput(rows) == {
        "generated_tokens_per_s": 0.0,
        "target_tokens_per_s": 150.0,
        "trained_tokens_per_s": 0.0,
    }


def test_queues_of_one_name_are_added_up() -> None:
    queue = {"name": "hidden_states", "depth": 2, "capacity": 8, "bytes": 5, "capacity_bytes": 9}
    rows = [worker("target_forward", rank, queues=[queue]) for rank in range(2)]
    assert merge_queues(rows) == [
        {"name": "hidden_states", "depth": 4, "capacity": 16, "bytes": 10, "capacity_bytes": 18}
    ]


def waiting(role: str, waits_for: str, share: float):
    return worker(role, waits_for=waits_for, metrics={"waits_for_share": share})


def test_the_longest_wait_is_the_bottleneck() -> None:
    rows = [
        waiting("batcher", "generator", 0.3),
        waiting("drafter_trainer", "target_forward", 0.8),
    ]
    sentence = "drafter_trainer waits for target_forward 80 % of the last minute"
    assert bottleneck(rows, NOW) == sentence


def test_the_trainers_own_wait_is_named_before_longer_ones_upstream() -> None:
    rows = [
        waiting("batcher", "generator", 0.9),
        waiting("drafter_trainer", "target_forward", 0.4),
    ]
    assert str(bottleneck(rows, NOW)).startswith("drafter_trainer waits")


def test_those_who_wait_for_a_busy_trainer_are_not_the_bottleneck() -> None:
    rows = [
        waiting("target_forward", "batcher", 0.9),
        worker("drafter_trainer", metrics={"busy_share": 0.97}),
    ]
    assert bottleneck(rows, NOW) == "drafter_trainer is busy 97 % of the last minute"


def test_before_the_trainer_has_work_the_longest_wait_is_named() -> None:
    rows = [
        waiting("batcher", "generator", 0.6),
        worker("drafter_trainer", metrics={"busy_share": 0.0}),
    ]
    assert str(bottleneck(rows, NOW)).startswith("batcher waits for generator")


def test_without_waits_the_busiest_worker_is_named_or_nobody() -> None:
    busy = worker("target_forward", metrics={"busy_share": 0.93})
    idle = worker("batcher", metrics={"busy_share": 0.05})
    assert bottleneck([busy, idle], NOW) == "target_forward is busy 93 % of the last minute"
    assert bottleneck([idle], NOW) is None
    assert bottleneck([], NOW) is None


def test_a_young_worker_has_waited_for_a_share_of_its_own_time() -> None:
    young = waiting("batcher", "generator", 1.0)
    young.registered_at = NOW - 26
    assert bottleneck([young], NOW) == "batcher waits for generator 100 % of its time so far"
    assert bottleneck([young], NOW + 40) == "batcher waits for generator 100 % of the last minute"


def test_a_finished_role_is_not_blamed() -> None:
    done = worker("generator", state="finished")
    rows = [done, waiting("batcher", "generator", 1.0)]
    assert bottleneck(rows, NOW) is None
    busy = worker("target_forward", metrics={"busy_share": 0.8})
    assert str(bottleneck([*rows, busy], NOW)).startswith("target_forward is busy")
    done.state = "running"
    assert str(bottleneck(rows, NOW)).startswith("batcher waits for generator")


@pytest.mark.parametrize(
    ("progress", "evaluating", "stage"),
    [
        ({}, False, Stage.GENERATE),
        ({"completions_done": 5, "completions_total": 10, "step": 3}, False, Stage.GENERATE),
        ({"completions_done": 9, "completions_failed": 1, "completions_total": 10}, False, "train"),
        ({}, True, Stage.EVALUATE),
    ],
)
def test_stage(progress: dict, evaluating: bool, stage: str) -> None:
    assert current_stage(ALL, Progress(**progress), evaluating=evaluating) == stage


def test_eta_from_a_steady_pace() -> None:
    eta = EtaEstimator()
    for second in range(31):
        left_s = eta.update(Progress(step=2 * second, steps_total=200), 1000.0 + second)
    assert left_s == pytest.approx(70, rel=0.01)


def test_eta_is_unknown_at_first_and_after_a_step_back() -> None:
    eta = EtaEstimator()
    assert eta.update(Progress(step=5, steps_total=10), 0) is None
    assert eta.update(Progress(step=6, steps_total=10), 1) == pytest.approx(4)
    assert eta.update(Progress(step=2, steps_total=10), 2) is None


def test_eta_goes_by_completions_before_training() -> None:
    eta = EtaEstimator()
    eta.update(Progress(completions_done=0, completions_total=100), 0)
    left_s = eta.update(Progress(completions_done=10, completions_total=100), 5)
    assert left_s == pytest.approx(45)
