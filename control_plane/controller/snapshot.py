"""The rows of a run at one moment: what every decision about it is made from."""

from __future__ import annotations

from dataclasses import dataclass

from sqlmodel import Session

from control_plane.store import evaluations, exports, ledger, runs, workers
from control_plane.store.tables import Evaluation, Export, Run, Worker
from shared.states import Role


@dataclass(frozen=True)
class Snapshot:
    """One consistent view. `workers` are all incarnations in order of launch."""

    run: Run
    workers: list[Worker]
    evaluations: list[Evaluation]
    exports: list[Export]
    newest_checkpoint_step: int | None

    @property
    def own_workers(self) -> list[Worker]:
        """Those of the run itself, without the workers of jobs."""
        return [w for w in self.workers if w.job_id is None]

    @property
    def evaluator_lives(self) -> bool:
        """Whether an evaluation, over or not, still has its worker."""
        return any(w.ended_at is None and w.role == Role.EVALUATOR for w in self.workers)

    @property
    def has_live_workers(self) -> bool:
        return any(w.ended_at is None for w in self.workers)


def take_snapshot(session: Session, run_id: str) -> Snapshot:
    """NotFoundError when the run has been deleted."""
    newest = ledger.newest_checkpoint(session, run_id)
    return Snapshot(
        runs.get(session, run_id),
        workers.list_for_run(session, run_id),
        evaluations.list_for_run(session, run_id),
        exports.list_for_run(session, run_id),
        newest.step if newest else None,
    )
