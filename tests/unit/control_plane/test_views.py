"""What a person sees of a run's workers."""

from __future__ import annotations

from control_plane.store.views import slot_views
from tests.unit.control_plane.controller.rows import NOW, ended, worker


def test_a_slot_shows_its_newest_incarnation_and_the_last_error_of_any():
    views = slot_views(
        [
            ended("generator", 50, number=0, last_error="first"),
            ended("generator", 30, number=1, last_error="second"),
            worker("generator", number=2),
            worker("batcher"),
        ],
        NOW,
    )
    assert [(view.id, view.last_error) for view in views] == [
        ("generator-0-2", "second"),
        ("batcher-0-0", None),
    ]


def test_what_has_ended_stays_and_of_the_jobs_of_a_role_the_newest():
    views = slot_views(
        [
            ended("drafter_trainer", 5, last_error="out of memory"),
            ended("archiver", 5, job_id="export-1", last_error="no such bucket"),
            ended("evaluator", 5, state="exited", job_id="eval-1"),
            worker("archiver", number=1, job_id="export-2"),
            worker("archiver", number=2),
        ],
        NOW,
    )
    assert [(view.id, view.state, view.last_error) for view in views] == [
        ("drafter_trainer-0-0", "failed", "out of memory"),
        ("archiver-0-1", "running", None),
        ("evaluator-0-0", "exited", None),
        ("archiver-0-2", "running", None),
    ]


def test_workers_that_are_asked_to_hold_are_shown_paused():
    rows = [
        worker("batcher", desired="pause"),
        worker("target_forward", state="starting", desired="pause"),
        worker("generator", state="starting", desired="pause", registered_at=None),
        worker("drafter_trainer", state="finished", desired="pause"),
        ended("archiver", 5, desired="pause"),
    ]
    states = [view.state for view in slot_views(rows, NOW)]
    assert states == ["paused", "paused", "starting", "finished", "failed"]
