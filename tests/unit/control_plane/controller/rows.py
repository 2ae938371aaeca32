"""Rows for tests of pure decisions."""

from __future__ import annotations

from typing import Any

from control_plane.store.tables import Evaluation, Run, Worker
from shared.config import RunConfig, resolve_config
from shared.states import RunState

NOW = 1_000_000.0


def config(**tables: Any) -> RunConfig:
    tree = {
        "target": {"path": "builtin:tiny"},
        "data": {"prompts": "builtin:tiny"},
        "archive": {"worker": False},
        "supervision": {
            "heartbeat_s": 1,
            "lease_s": 10,
            "startup_s": 60,
            "drain_deadline_s": 20,
            "backoff_s": 1,
            "max_backoff_s": 8,
            "breaker_restarts": 3,
            "breaker_window_s": 100,
        },
    }
    return resolve_config({**tree, **tables})


def run(state: RunState, **fields: Any) -> Run:
    return Run(
        id="run-1",
        name="r",
        state=state.value,
        created_at=NOW - 500,
        updated_at=NOW,
        config_sha256="0" * 64,
        **fields,
    )


def worker(role: str, rank: int = 0, number: int = 0, **fields: Any) -> Worker:
    """A registered, live worker that was heard a second ago."""
    given: dict[str, Any] = {
        "id": f"{role}-{rank}-{number}",
        "run_id": "run-1",
        "role": role,
        "rank": rank,
        "incarnation": f"{role}{rank}{number}",
        "state": "running",
        "desired": "run",
        "launched": True,
        "launched_at": NOW - 100,
        "registered_at": NOW - 99,
        "heartbeat_at": NOW - 1,
        "pid": 1,
        "pid_birth": "boot/1",
    }
    return Worker(**{**given, **fields})


def ended(role: str, ago_s: float, number: int = 0, **fields: Any) -> Worker:
    """A worker that ended unasked with exit code 1."""
    return worker(
        role,
        number=number,
        **{"state": "failed", "ended_at": NOW - ago_s, "exit_code": 1, **fields},
    )


def evaluation(state: str, **fields: Any) -> Evaluation:
    given: dict[str, Any] = {"id": "eval-1", "run_id": "run-1", "created_at": NOW, "final": True}
    return Evaluation(**{**given, **fields}, state=state)
