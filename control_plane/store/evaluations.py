"""Evaluation jobs: acceptance length of a checkpoint."""

from __future__ import annotations

from typing import Any

from sqlmodel import Session, col, select

from control_plane.store import events, runs
from control_plane.store.ids import made_order, new_job_id
from control_plane.store.tables import Evaluation
from control_plane.store.views import evaluation_view
from shared.errors import NotFoundError

ENDED = frozenset({"completed", "failed"})


def create(
    session: Session,
    run_id: str,
    *,
    checkpoint_step: int | None,
    num_prompts: int | None,
    now: float,
    final: bool = False,
) -> Evaluation:
    """A queued evaluation; `checkpoint_step` None means the newest one when it starts, `final`
    that its result becomes the run's acceptance length."""
    runs.get(session, run_id)
    evaluation = Evaluation(
        id=new_job_id("eval"),
        run_id=run_id,
        state="queued",
        checkpoint_step=checkpoint_step,
        num_prompts=num_prompts,
        final=final,
        created_at=now,
    )
    return _store(session, evaluation, now)


def get(session: Session, evaluation_id: str) -> Evaluation:
    evaluation = session.get(Evaluation, evaluation_id)
    if evaluation is None:
        raise NotFoundError(f"there is no evaluation {evaluation_id!r}")
    return evaluation


def list_for_run(session: Session, run_id: str) -> list[Evaluation]:
    """Evaluations of a run, oldest first."""
    query = select(Evaluation).where(Evaluation.run_id == run_id)
    return list(session.exec(query.order_by(made_order(Evaluation))))


def list_open(session: Session) -> list[Evaluation]:
    """Evaluations that have not ended, oldest first."""
    query = select(Evaluation).where(col(Evaluation.state).not_in(ENDED))
    return list(session.exec(query.order_by(made_order(Evaluation))))


def start(session: Session, evaluation_id: str, *, checkpoint_step: int, now: float) -> Evaluation:
    """The evaluator starts on this checkpoint."""
    evaluation = get(session, evaluation_id)
    if evaluation.state in ENDED:
        return evaluation
    evaluation.state, evaluation.checkpoint_step = "running", checkpoint_step
    evaluation.started_at = evaluation.started_at or now
    return _store(session, evaluation, now)


def complete(
    session: Session, evaluation_id: str, result: dict[str, Any], *, now: float
) -> Evaluation:
    """Store the result; a second arrival changes nothing."""
    evaluation = get(session, evaluation_id)
    if evaluation.state in ENDED:
        return evaluation
    evaluation.state, evaluation.result, evaluation.ended_at = "completed", result, now
    return _store(session, evaluation, now)


def fail(session: Session, evaluation_id: str, problem: str, *, now: float) -> Evaluation:
    evaluation = get(session, evaluation_id)
    if evaluation.state in ENDED:
        return evaluation
    evaluation.state, evaluation.problem, evaluation.ended_at = "failed", problem, now
    return _store(session, evaluation, now)


def retire_failed(session: Session, run_id: str) -> None:
    """A new attempt at the run begins: a final evaluation that failed is its final one no more."""
    for evaluation in list_for_run(session, run_id):
        if evaluation.final and evaluation.state == "failed":
            evaluation.final = False
            session.add(evaluation)
    session.flush()


def _store(session: Session, evaluation: Evaluation, now: float) -> Evaluation:
    session.add(evaluation)
    session.flush()
    data = evaluation_view(evaluation).model_dump(mode="json")
    events.append(session, evaluation.run_id, "evaluation", data, now=now)
    return evaluation
