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


def test_a_slot_whose_process_ended_stays_and_an_ended_job_leaves():
    views = slot_views(
        [
            ended("drafter_trainer", 5, last_error="out of memory"),
            ended("archiver", 5, job_id="export-1", last_error="no such bucket"),
            worker("archiver", number=1, job_id="export-2"),
        ],
        NOW,
    )
    assert [(view.id, view.state, view.last_error) for view in views] == [
        ("drafter_trainer-0-0", "failed", "out of memory"),
        ("archiver-0-1", "running", None),
    ]
