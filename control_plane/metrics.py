"""Prometheus text of everything the control plane knows, made from the database at each scrape.

    runs, newest incarnation of each worker slot, exports -> gather (one read) -> render (pure)

Counters are sums over every incarnation that the database remembers, so they grow across restarts
of workers and of the control plane; they end with the run they are labelled with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from sqlmodel import Session, col, select

from control_plane.store import runs
from control_plane.store.slots import newest_of_slots
from control_plane.store.tables import Export, Run, Worker
from shared.states import ACTIVE_STATES, Role, RunState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STAGES = {
    Role.GENERATOR: "generated",
    Role.TARGET_FORWARD: "target",
    Role.DRAFTER_TRAINER: "trained",
}


@dataclass(frozen=True)
class Facts:
    """Rows that the metrics are made of: runs that are not forgotten, their workers, exports."""

    runs: list[Run]
    workers: list[Worker]
    exports: list[Export]


def gather(session: Session) -> Facts:
    return Facts(
        runs=runs.list_in_states(session, RunState),
        workers=list(session.exec(select(Worker).order_by(col(Worker.launched_at)))),
        exports=list(session.exec(select(Export))),
    )


def render(facts: Facts, version: str) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Facts(facts, version))
    return generate_latest(registry)


class _Facts(Collector):
    def __init__(self, facts: Facts, version: str) -> None:
        self._facts = facts
        self._version = version

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("dflash_build_info", "Version", labels=["version"])
        build.add_metric([self._version], 1)
        yield build
        yield _states(self._facts.runs)
        yield _tokens(self._facts.workers)
        yield _durations(self._facts.workers)
        yield from _queues(self._facts.runs)
        yield from _slots(self._facts)
        yield from _training(self._facts.runs)
        yield _archive(self._facts.exports)


def _states(all_runs: list[Run]) -> Metric:
    family = GaugeMetricFamily("dflash_runs", "Runs by state", labels=["state"])
    for state in RunState:
        family.add_metric([state.value], sum(run.state == state.value for run in all_runs))
    return family


def _tokens(all_workers: list[Worker]) -> Metric:
    sums: dict[tuple[str, str], float] = {}
    for worker in all_workers:
        stage = _STAGES.get(Role(worker.role))
        if stage is not None:
            key = (stage, worker.run_id)
            sums[key] = sums.get(key, 0.0) + worker.metrics.get("tokens_total", 0.0)
    family = CounterMetricFamily(
        "dflash_tokens", "Tokens that a stage has handled", labels=["stage", "run"]
    )
    for key, total in sorted(sums.items()):
        family.add_metric(key, total)
    return family


def _durations(all_workers: list[Worker]) -> Metric:
    spans: dict[tuple[str, str], tuple[float, float]] = {}
    for worker in all_workers:
        if worker.registered_at is not None and worker.job_id is None:
            last = worker.ended_at or worker.heartbeat_at or worker.registered_at
            key = (worker.role, worker.run_id)
            first, latest = spans.get(key, (worker.registered_at, last))
            spans[key] = (min(first, worker.registered_at), max(latest, last))
    family = GaugeMetricFamily(
        "dflash_stage_duration_seconds",
        "From the first registration of a stage's workers to their last sign of life",
        labels=["stage", "run"],
    )
    for key, (first, last) in sorted(spans.items()):
        family.add_metric(key, max(0.0, last - first))
    return family


def _queues(all_runs: list[Run]) -> Iterator[Metric]:
    for name, field, text in (
        ("dflash_queue_depth", "depth", "Messages in a queue"),
        ("dflash_queue_capacity", "capacity", "Messages a queue can hold"),
        ("dflash_queue_bytes", "bytes", "Bytes in a queue"),
    ):
        family = GaugeMetricFamily(name, text, labels=["queue", "run"])
        for run in _active(all_runs):
            for queue in run.queues:
                family.add_metric([str(queue["name"]), run.id], float(queue[field]))
        yield family


def _slots(facts: Facts) -> Iterator[Metric]:
    active = {run.id for run in _active(facts.runs)}
    up = GaugeMetricFamily(
        "dflash_worker_up", "1 while the worker lives", labels=["role", "rank", "run"]
    )
    restarts: dict[tuple[str, str], int] = {}
    for worker in newest_of_slots(facts.workers):
        key = (worker.role, worker.run_id)
        restarts[key] = restarts.get(key, 0) + worker.restarts
        if worker.run_id in active and worker.job_id is None:
            labels = [worker.role, str(worker.rank), worker.run_id]
            up.add_metric(
                labels, float(worker.ended_at is None and worker.heartbeat_at is not None)
            )
    yield up
    family = CounterMetricFamily(
        "dflash_worker_restarts", "Restarts by the supervisor", labels=["role", "run"]
    )
    for key, count in sorted(restarts.items()):
        family.add_metric(key, count)
    yield family


def _training(all_runs: list[Run]) -> Iterator[Metric]:
    step = GaugeMetricFamily("dflash_train_step", "Optimizer steps taken", labels=["run"])
    loss = GaugeMetricFamily("dflash_train_loss", "Loss of the last step", labels=["run"])
    accuracy = GaugeMetricFamily(
        "dflash_train_accuracy", "Accuracy of the last step", labels=["run"]
    )
    acceptance = GaugeMetricFamily(
        "dflash_acceptance_length",
        "Generated tokens for each verification step, pooled over prompts",
        labels=["run"],
    )
    for run in all_runs:
        step.add_metric([run.id], float(run.progress.get("step", 0)))
        for family, value in (
            (loss, run.loss),
            (accuracy, run.accuracy),
            (acceptance, run.acceptance_length),
        ):
            if value is not None:
                family.add_metric([run.id], value)
    yield from (step, loss, accuracy, acceptance)


def _archive(all_exports: list[Export]) -> Metric:
    sums: dict[str, int] = {}
    for export in all_exports:
        sums[export.run_id] = sums.get(export.run_id, 0) + export.bytes_done
    family = CounterMetricFamily("dflash_archive_bytes", "Bytes exported", labels=["run"])
    for run_id, total in sorted(sums.items()):
        family.add_metric([run_id], total)
    return family


def _active(all_runs: list[Run]) -> list[Run]:
    return [run for run in all_runs if RunState(run.state) in ACTIVE_STATES]
