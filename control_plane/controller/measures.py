"""What a run's page says, from its workers' heartbeats: progress, rates, queues, bottleneck, ETA.

Pure functions over the rows of live workers. A rate counts only while the worker reports; a queue
that several workers see is the sum of what they see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from control_plane.store.slots import newest_of_slots
from control_plane.store.tables import Worker
from shared.api.runs import Progress
from shared.states import Role, Stage, WorkerState

# The window that the workers' meters keep their shares over; a younger worker has a shorter one.
SHARE_WINDOW_S = 60.0

_RATES = {
    Role.GENERATOR: "generated_tokens_per_s",
    Role.TARGET_FORWARD: "target_tokens_per_s",
    Role.DRAFTER_TRAINER: "trained_tokens_per_s",
}
_QUEUE_FIELDS = ("depth", "capacity", "bytes", "capacity_bytes")
# Below this share of the last minute no single wait explains the pace.
_NOTABLE_SHARE = 0.1
# From this share of the last minute on a worker counts as busy.
_BUSY_SHARE = 0.5


def merge_progress(known: dict[str, Any], workers: Sequence[Worker]) -> dict[str, Any]:
    """`known` with what the run's own workers report, live or with their last words; `workers` are
    incarnations in order of launch. One that has just started reports nothing yet, so the old
    figure stays."""
    merged = dict(known)
    for worker in newest_of_slots(w for w in workers if w.job_id is None):
        fields = {k: v for k, v in worker.progress.items() if k in Progress.model_fields}
        merged.update(fields)
    return merged


def throughput(workers: Sequence[Worker]) -> dict[str, float]:
    """Tokens per second of each stage, summed over its workers."""
    rates = dict.fromkeys(_RATES.values(), 0.0)
    for worker in workers:
        name = _RATES.get(Role(worker.role))
        if name is not None:
            rates[name] += worker.metrics.get("tokens_per_s", 0.0)
    return rates


def merge_queues(workers: Sequence[Worker]) -> list[dict[str, Any]]:
    """Queues by name, in the order in which they are first seen, figures summed."""
    merged: dict[str, dict[str, Any]] = {}
    for worker in workers:
        for queue in worker.queues:
            known = merged.setdefault(queue["name"], dict.fromkeys(_QUEUE_FIELDS, 0))
            for name in _QUEUE_FIELDS:
                known[name] += queue[name]
    return [{"name": name, **figures} for name, figures in merged.items()]


def bottleneck(workers: Sequence[Worker], now: float) -> str | None:
    """A sentence such as 'drafter_trainer waits for target_forward 80 % of the last minute'.

    The trainer sets the pace once it runs: a wait of its own is named, else that it is busy, since
    whoever waits upstream then waits for it. Otherwise the longest wait, or the busiest worker.
    A wait for a role that has finished its work limits nothing and is left out. `now` tells how
    much of the last minute a worker has lived.
    """
    running = [w for w in workers if w.state == WorkerState.RUNNING.value]
    at_work = {w.role for w in workers if w.state != WorkerState.FINISHED.value}
    finished = {w.role for w in workers} - at_work
    waiting = [w for w in running if w.waits_for is not None and w.waits_for not in finished]
    trainers = [w for w in running if w.role == Role.DRAFTER_TRAINER]
    return (
        _longest_wait([w for w in waiting if w in trainers], now)
        or _busiest(trainers, now)
        or _longest_wait(waiting, now)
        or _busiest(running, now)
    )


def _longest_wait(workers: Sequence[Worker], now: float) -> str | None:
    waits = [(w.metrics.get("waits_for_share", 0.0), w) for w in workers]
    share, worker = max(waits, key=lambda item: item[0], default=(0.0, None))
    if worker is None or share < _NOTABLE_SHARE:
        return None
    return f"{worker.role} waits for {worker.waits_for} {_share_of_time(share, worker, now)}"


def _busiest(workers: Sequence[Worker], now: float) -> str | None:
    busy = [(w.metrics.get("busy_share", 0.0), w) for w in workers]
    share, worker = max(busy, key=lambda item: item[0], default=(0.0, None))
    if worker is None or share < _BUSY_SHARE:
        return None
    return f"{worker.role} is busy {_share_of_time(share, worker, now)}"


def _share_of_time(share: float, worker: Worker, now: float) -> str:
    is_young = now - (worker.registered_at or worker.launched_at) < SHARE_WINDOW_S
    window = "of its time so far" if is_young else "of the last minute"
    return f"{round(100 * share)} % {window}"


def current_stage(stages: Sequence[Stage], progress: Progress, *, evaluating: bool) -> Stage | None:
    """The stage the page shows: the earliest that is not done, of those the run has."""
    if evaluating and Stage.EVALUATE in stages:
        return Stage.EVALUATE
    accounted = progress.completions_done + progress.completions_failed
    is_generated = 0 < progress.completions_total <= accounted
    if Stage.GENERATE in stages and not is_generated:
        return Stage.GENERATE
    judged = progress.samples_accepted + progress.samples_quarantined
    if Stage.TRAIN in stages:
        return Stage.TRAIN
    if Stage.TOKENISE in stages and judged <= accounted:
        return Stage.TOKENISE
    return stages[-1] if stages else None


class EtaEstimator:
    """Time left, from the pace of the last stretch: steps when training, else completions.

    Keeps the pace as an exponential mean with a time constant of a minute, so that one slow step
    does not make the figure jump.
    """

    TIME_CONSTANT_S = 60.0

    def __init__(self) -> None:
        self._last: tuple[float, str, int] | None = None
        self._pace = 0.0
        self._weight = 0.0

    def update(self, progress: Progress, now: float) -> float | None:
        """Seconds left at `now`; None while there is no pace to go by."""
        name, done, total = _unit_of_work(progress)
        last, self._last = self._last, (now, name, done)
        if last is None or last[1] != name or done < last[2]:
            self._pace = self._weight = 0.0
            return None
        elapsed_s = now - last[0]
        if elapsed_s > 0:
            keep = 2.718281828459045 ** (-elapsed_s / self.TIME_CONSTANT_S)
            self._pace = keep * self._pace + (1 - keep) * (done - last[2]) / elapsed_s
            self._weight = keep * self._weight + (1 - keep)
        if self._weight < 1e-9 or self._pace <= 0:
            return None
        return max(total - done, 0) * self._weight / self._pace


def _unit_of_work(progress: Progress) -> tuple[str, int, int]:
    if progress.steps_total > 0:
        return "step", progress.step, progress.steps_total
    done = progress.completions_done + progress.completions_failed
    return "completion", done, progress.completions_total
