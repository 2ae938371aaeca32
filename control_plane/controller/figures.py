"""Keeps a run's figures: at most once a second from the workers' rows to the run's row.

    worker rows -> measures.py -> run row, live `run` and `workers` events, series every two seconds

A stall (heartbeats, but no progress for `supervision.stall_s`) is reported once, by a log line
and an alert; it ends when something moves again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf
from typing import Any

from sqlmodel import Session

from control_plane.broadcast import StreamEvent
from control_plane.controller.environment import ControllerEnvironment
from control_plane.controller.measures import (
    EtaEstimator,
    bottleneck,
    current_stage,
    merge_progress,
    merge_queues,
    throughput,
)
from control_plane.store import events, runs, series
from control_plane.store.series import Sample
from control_plane.store.tables import Evaluation, Run, Worker
from control_plane.store.views import run_view, slot_views
from shared.api.runs import Progress
from shared.config import RunConfig
from shared.states import ACTIVE_STATES, RunState

logger = logging.getLogger(__name__)
INTERVAL_S = 1.0
SERIES_INTERVAL_S = 2.0
PRUNE_INTERVAL_S = 60.0


class FigureKeeper:
    """The figures of one run."""

    def __init__(self, config: RunConfig, environment: ControllerEnvironment) -> None:
        self._config = config
        self._environment = environment
        self._eta = EtaEstimator()
        self._updated_s = self._series_s = -inf
        self._pruned_s = environment.monotonic()
        self._created_s: float | None = None  # the run was created then, on the monotonic clock
        self._signature: object = None
        self._moved_s = environment.monotonic()
        self._is_stalled = False

    async def update(
        self, run: Run, workers: Sequence[Worker], evaluations: Sequence[Evaluation]
    ) -> None:
        """Bring the run's figures up to date, if a second has passed since the last time."""
        now, now_s = self._environment.clock(), self._environment.monotonic()
        is_active = RunState(run.state) in ACTIVE_STATES
        if now_s - self._updated_s < INTERVAL_S and is_active:
            return
        self._updated_s = now_s
        live = [w for w in workers if w.ended_at is None and w.registered_at is not None]
        figures = self._figures(run, workers, evaluations, now, now_s)
        if {name: getattr(run, name) for name in figures} != figures:
            run = await self._environment.database.write(runs.update, run.id, now=now, **figures)
            self._publish(run.id, "run", lambda: run_view(run).model_dump(mode="json"))
        self._publish(
            run.id,
            "workers",
            lambda: [view.model_dump(mode="json") for view in slot_views(workers, now)],
        )
        if is_active:
            await self._keep_series(run, figures, now, now_s)
            await self._watch_for_stall(run, live, now, now_s)

    def _figures(
        self,
        run: Run,
        workers: Sequence[Worker],
        evaluations: Sequence[Evaluation],
        now: float,
        now_s: float,
    ) -> dict[str, Any]:
        live = [w for w in workers if w.ended_at is None and w.registered_at is not None]
        own = [w for w in live if w.job_id is None]
        state = RunState(run.state)
        progress = Progress.model_validate(merge_progress(run.progress, workers))
        figures: dict[str, Any] = {
            "progress": progress.model_dump(),
            "queues": merge_queues(own),
            "throughput": throughput([]),
            "bottleneck": None,
            "eta_s": None,
        }
        if state is RunState.RUNNING:
            evaluating = any(e.final and e.state == "running" for e in evaluations)
            stage = current_stage(self._config.stages, progress, evaluating=evaluating)
            figures["stage"] = stage.value if stage else None
            figures["throughput"] = throughput(own)
            if not evaluating:  # the others have nothing left to do
                figures["bottleneck"] = bottleneck(own, now)
                figures["eta_s"] = self._eta.update(progress, now_s)
        return figures

    async def _keep_series(
        self, run: Run, figures: dict[str, Any], now: float, now_s: float
    ) -> None:
        database = self._environment.database
        if now_s - self._series_s >= SERIES_INTERVAL_S:
            if self._created_s is None:
                self._created_s = now_s - max(0.0, now - run.created_at)
            self._series_s = now_s
            step = int(now_s - self._created_s)
            samples = [
                Sample(name, step, now, value) for name, value in figures["throughput"].items()
            ]
            samples += [
                Sample(f"queue_depth.{queue['name']}", step, now, float(queue["depth"]))
                for queue in figures["queues"]
            ]
            await database.write(series.add, run.id, samples)
            for sample in samples:
                self._publish(run.id, "point", lambda s=sample: point_data(s))
        if now_s - self._pruned_s >= PRUNE_INTERVAL_S:
            self._pruned_s = now_s
            await database.write(events.prune, run.id)

    async def _watch_for_stall(
        self, run: Run, live: Sequence[Worker], now: float, now_s: float
    ) -> None:
        signature = [(w.id, w.progress, w.metrics.get("tokens_total")) for w in live]
        if signature != self._signature or RunState(run.state) is not RunState.RUNNING:
            self._signature, self._moved_s, self._is_stalled = signature, now_s, False
            return
        supervision = self._config.supervision
        if self._is_stalled or now_s - self._moved_s < supervision.stall_s:
            return
        self._is_stalled = True
        message = f"no progress for {supervision.stall_s:g} s although the workers answer"
        logger.warning("run %s: %s", run.id, message)
        await self._environment.database.write(_log_stall, run.id, message, now=now)
        self._environment.alerts.send(run, supervision.webhook_env, "stall", message)

    def _publish(self, run_id: str, name: str, data: Any) -> None:
        broadcaster = self._environment.broadcaster
        if broadcaster.has_listeners(run_id):
            broadcaster.publish(run_id, StreamEvent(name, data()))


def point_data(sample: Sample) -> dict[str, Any]:
    """A value of a series as the event stream sends it."""
    return {"name": sample.name, "step": sample.step, "t": sample.t, "value": sample.value}


def _log_stall(session: Session, run_id: str, message: str, *, now: float) -> None:
    data = {
        "level": "warning",
        "role": "control_plane",
        "rank": 0,
        "message": message,
        "created_at": now,
    }
    events.append(session, run_id, "log", data, now=now)
