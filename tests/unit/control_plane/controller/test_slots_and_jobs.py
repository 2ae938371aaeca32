"""Workers a run needs, and which jobs are due."""

from __future__ import annotations

import pytest

from control_plane.controller.decisions import Phase
from control_plane.controller.jobs import due_jobs, jobs_of
from control_plane.controller.slots import may_register, run_slots
from control_plane.store.tables import Export
from shared.states import Role
from tests.unit.control_plane.controller.rows import NOW, config, evaluation, worker


def names(**tables: object) -> list[str]:
    return [f"{s.role.value}-{s.rank}:{s.device}" for s in run_slots(config(**tables))]


def test_slots_of_a_whole_run() -> None:
    forward = {"num_workers": 2, "devices": ["cuda:0", "cuda:1"], "num_threads": 2}
    found = names(target_forward=forward, trainer={"device": "cuda:2"})
    assert found == [
        "generator-0:auto",
        "batcher-0:cpu",
        "target_forward-0:cuda:0",
        "target_forward-1:cuda:1",
        "drafter_trainer-0:cuda:2",
    ]


def test_one_device_serves_all_workers_and_an_archive_needs_an_archiver() -> None:
    found = names(
        target_forward={"num_workers": 2},
        archive={"destination": "file:///x"},
        stages=["train"],
        data={"dataset": "/d"},
    )
    assert found == [
        "batcher-0:cpu",
        "target_forward-0:auto",
        "target_forward-1:auto",
        "drafter_trainer-0:auto",
        "archiver-0:cpu",
    ]


@pytest.mark.parametrize(
    ("role", "rank", "job", "expected"),
    [
        (Role.TARGET_FORWARD, 7, None, True),
        (Role.BATCHER, 0, None, True),
        (Role.BATCHER, 1, None, False),
        (Role.ARCHIVER, 0, None, False),
        (Role.ARCHIVER, 1, "export-1", False),
    ],
)
def test_who_may_join_by_hand(role: Role, rank: int, job: str | None, expected: bool) -> None:
    assert may_register(config(), role, rank, job) is expected


def export(number: int, state: str, **fields: object) -> Export:
    return Export(
        id=f"export-{number}",
        run_id="run-1",
        state=state,
        destination="file:///x",
        checkpoints="latest",
        created_at=NOW + number,
        **fields,
    )


def due(exports: list, evaluations: list = [], workers: list = [], down: bool = False) -> list:  # noqa: B006
    jobs = jobs_of(config(), exports, evaluations)
    return [(job.id, phase) for job, phase in due_jobs(jobs, workers, shutting_down=down)]


def test_one_job_of_a_kind_at_a_time() -> None:
    found = due([export(1, "running"), export(2, "queued")], [evaluation("queued")])
    assert found == [("export-1", Phase.WORK), ("eval-1", Phase.WORK)]


def test_the_next_job_waits_for_the_worker_of_the_last_one() -> None:
    lives = worker("archiver", 1, job_id="export-1")
    exports = [export(1, "completed"), export(2, "queued")]
    assert due(exports, workers=[lives]) == [("export-1", Phase.DRAIN)]
    lives.ended_at = NOW
    assert due(exports, workers=[lives]) == [("export-2", Phase.WORK)]


def test_a_cancelled_export_drains_its_worker_then_ends() -> None:
    cancelled = export(1, "running", cancel_requested=True)
    lives = worker("archiver", 1, job_id="export-1")
    assert due([cancelled], workers=[lives]) == [("export-1", Phase.DRAIN)]
    assert due([cancelled]) == [("export-1", Phase.CLEAR)]


def test_a_shutdown_drains_workers_and_starts_none() -> None:
    lives = worker("archiver", 1, job_id="export-1")
    exports = [export(1, "running"), export(2, "queued")]
    assert due(exports, workers=[lives], down=True) == [("export-1", Phase.DRAIN)]
    assert due(exports, down=True) == []


def test_a_job_queued_again_waits_until_its_finished_worker_has_left() -> None:
    again = export(1, "queued", verify_only=True)
    lives = worker("archiver", 1, job_id="export-1", state="finished")
    assert due([again], workers=[lives]) == [("export-1", Phase.DRAIN)]
    lives.ended_at = NOW
    assert due([again], workers=[lives]) == [("export-1", Phase.WORK)]


def test_the_final_evaluation_of_a_held_run_waits_for_the_run() -> None:
    jobs = jobs_of(config(), [export(1, "queued")], [evaluation("running")])

    def due_when_held(workers: list) -> list:
        found = due_jobs(jobs, workers, shutting_down=False, run_is_held=True)
        return [job.id for job, _ in found]

    assert due_when_held([]) == ["export-1"]
    assert due_when_held([worker("evaluator", job_id="eval-1")]) == ["export-1", "eval-1"]
    asked_for = jobs_of(config(), [], [evaluation("queued", final=False)])
    assert due_jobs(asked_for, [], shutting_down=False, run_is_held=True)
