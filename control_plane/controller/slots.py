"""Which workers a run needs, as a pure function of its configuration.

A slot is one place to fill: a role and a rank, or the worker of a job. Job workers have slots of
their own, so that a continuous archiver and the archiver of an export never supersede each other;
jobs of a kind run one after another within a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.store.tables import Worker
from shared.config import RunConfig
from shared.states import Role, Stage

# Roles in the order in which they drain: upstream first, the archiver takes what the others leave.
DRAIN_ORDER = (
    Role.GENERATOR,
    Role.BATCHER,
    Role.TARGET_FORWARD,
    Role.DRAFTER_TRAINER,
    Role.EVALUATOR,
    Role.ARCHIVER,
)
_JOB_ARCHIVER_RANK = 1


@dataclass(frozen=True)
class Slot:
    """A worker the run needs; `device` is 'auto', 'cpu' or 'cuda:N' of the host."""

    role: Role
    rank: int
    device: str = "cpu"
    num_threads: int | None = None
    job_id: str | None = None

    def holds(self, worker: Worker) -> bool:
        """Whether `worker` is an incarnation of this slot."""
        return (worker.role, worker.rank, worker.job_id) == (
            self.role.value,
            self.rank,
            self.job_id,
        )


def run_slots(config: RunConfig) -> list[Slot]:
    """The workers of the run itself, in the order in which they start."""
    slots: list[Slot] = []
    if Stage.GENERATE in config.stages:
        generator = config.generator
        slots.append(Slot(Role.GENERATOR, 0, generator.device, generator.num_threads))
    slots.append(Slot(Role.BATCHER, 0))
    if Stage.TRAIN in config.stages:
        forward = config.target_forward
        devices = forward.devices * (forward.num_workers if len(forward.devices) == 1 else 1)
        slots.extend(
            Slot(Role.TARGET_FORWARD, rank, device, forward.num_threads)
            for rank, device in enumerate(devices)
        )
        slots.append(
            Slot(Role.DRAFTER_TRAINER, 0, config.trainer.device, config.trainer.num_threads)
        )
    if config.archive.worker:
        slots.append(Slot(Role.ARCHIVER, 0))
    return slots


def export_slot(export_id: str) -> Slot:
    """The archiver of one export."""
    return Slot(Role.ARCHIVER, _JOB_ARCHIVER_RANK, job_id=export_id)


def evaluation_slot(config: RunConfig, evaluation_id: str) -> Slot:
    """The evaluator of one evaluation."""
    evaluate = config.evaluate
    return Slot(Role.EVALUATOR, 0, evaluate.device, evaluate.num_threads, evaluation_id)


def may_register(config: RunConfig, role: Role, rank: int, job_id: str | None) -> bool:
    """Whether a worker that nobody launched here may join the run.

    Slots of the run may be filled by hand, and target_forward workers may join in any number:
    they have no state and take work by credit.
    """
    if job_id is not None:
        return False
    slots = run_slots(config)
    is_wanted = any(slot.role is role for slot in slots)
    if role is Role.TARGET_FORWARD:
        return is_wanted
    return is_wanted and any((slot.role, slot.rank) == (role, rank) for slot in slots)
