"""Following a run until it ends, from its event stream or, when that breaks, by asking again.

The line shows state, step, Ktok/s by stage, queue depths, loss and the time left. A broken stream
is picked up where it stopped (`Last-Event-ID`); a control plane that is away is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from control_plane.cli.api import Api
from control_plane.cli.output import ProgressLine, note
from shared.errors import UnreachableError, UpstreamTimeout
from shared.states import ENDED_STATES, RunState, Stage
from shared.units import format_duration, format_rate

RECONNECT_S = 1.0
AWAY_LIMIT_S = 120.0
_RESTING = {*(state.value for state in ENDED_STATES), RunState.BLOCKED.value}


def describe(run: dict[str, Any]) -> str:
    """One line about a run."""
    progress, rates = run["progress"], run["throughput"]
    is_running = run["state"] == RunState.RUNNING
    parts = [f"{run['state']}: {run['stage']}" if is_running and run["stage"] else run["state"]]
    if progress["completions_total"]:
        parts.append(f"completions {progress['completions_done']}/{progress['completions_total']}")
    if progress["steps_total"]:
        parts.append(f"step {progress['step']}/{progress['steps_total']}")
        parts.append(epoch_text(progress))
    if is_running and run["stage"] == Stage.EVALUATE:
        return " | ".join(parts)
    is_generated = progress["completions_done"] == progress["completions_total"]
    stages = {
        "generate": 0 if is_generated else rates["generated_tokens_per_s"],
        "target": rates["target_tokens_per_s"],
        "train": rates["trained_tokens_per_s"],
    }
    parts.extend(f"{name} {format_rate(rate)}" for name, rate in stages.items() if rate)
    if run["queues"]:
        depths = [
            f"{queue['name']} {queue['depth']}/{queue['capacity']}" for queue in run["queues"]
        ]
        parts.append("queues " + ", ".join(depths))
    if run["loss"] is not None:
        parts.append(f"loss {run['loss']:.3f}")
    if run["accuracy"] is not None:
        parts.append(f"accuracy {run['accuracy']:.3f}")
    if run["eta_s"] is not None and is_running:
        parts.append(f"{format_duration(run['eta_s'])} left")
    return " | ".join(parts)


def epoch_text(progress: dict[str, Any]) -> str:
    """'epoch 3 of 4', counted from 1 as people do."""
    total = f" of {progress['epochs_total']}" if progress["epochs_total"] else ""
    return f"epoch {progress['epoch'] + 1}{total}"


def told_reason(run: dict[str, Any]) -> str | None:
    """The reason of a run's state, where it says more than the state itself."""
    reason: str | None = run["reason"]
    return None if reason == run["state"] else reason


def watch_run(
    api: Api,
    run_id: str,
    *,
    on_update: Callable[[dict[str, Any]], None] | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Follow the run until it has ended or is blocked; its last view."""
    line = ProgressLine()
    last_id: str | None = None
    away_since: float | None = None
    try:
        while True:
            try:
                run: dict[str, Any] = api.get(f"/v1/runs/{run_id}")
                away_since = None
                while run["state"] not in _RESTING:
                    for event in api.events(f"/v1/runs/{run_id}/events", last_id=last_id):
                        last_id = event.id or last_id
                        if event.name == "log" and event.data["level"] in ("warning", "error"):
                            line.close()
                            note(f"{event.data['role']}: {event.data['message']}")
                        if event.name != "run":
                            continue
                        run = event.data
                        if on_update is not None:
                            on_update(run)
                        if not quiet:
                            line.show(describe(run))
                        if run["state"] in _RESTING:
                            break
                    run = api.get(f"/v1/runs/{run_id}")
                if not quiet:
                    line.show(describe(run), force=True)
                return run
            except (UnreachableError, UpstreamTimeout) as error:
                is_first, away_since = away_since is None, away_since or time.monotonic()
                if time.monotonic() - away_since > AWAY_LIMIT_S:
                    raise
                line.show(f"control plane away, trying again: {error.detail}", force=is_first)
                time.sleep(RECONNECT_S)
    finally:
        line.close()
