"""The ledger of a run: sealed segments and checkpoints, stored by their natural keys.

Events of workers arrive at least once; a second arrival of the same segment or checkpoint
changes nothing. A segment that arrives again with other content is a fault of the batcher and
raises IntegrityError, since a sealed segment never changes.
"""

from __future__ import annotations

from sqlmodel import Session, col, select

from control_plane.store import events
from control_plane.store.tables import Checkpoint, Segment
from control_plane.store.views import checkpoint_view
from shared.api.events import CheckpointSaved, SegmentSealed
from shared.errors import IntegrityError


def add_segment(session: Session, run_id: str, sealed: SegmentSealed, *, now: float) -> bool:
    """Store a sealed segment; False when it was there already."""
    known = session.get(Segment, (run_id, sealed.index))
    if known is not None:
        if known.sha256 != sealed.sha256:
            raise IntegrityError(
                f"segment {sealed.index} of run {run_id!r} was sealed with sha256 "
                f"{known.sha256} and is reported again with {sealed.sha256}"
            )
        return False
    session.add(
        Segment(
            run_id=run_id,
            index=sealed.index,
            num_samples=sealed.num_samples,
            num_tokens=sealed.num_tokens,
            num_supervised_tokens=sealed.num_supervised_tokens,
            sha256=sealed.sha256,
            path=sealed.path,
            created_at=now,
        )
    )
    session.flush()
    return True


def list_segments(session: Session, run_id: str) -> list[Segment]:
    query = select(Segment).where(Segment.run_id == run_id).order_by(col(Segment.index))
    return list(session.exec(query))


def add_checkpoint(session: Session, run_id: str, saved: CheckpointSaved, *, now: float) -> bool:
    """Store a complete checkpoint and append its event; False when it was there already.

    A trainer that went back to an older checkpoint saves the same step again: the row then
    counts as present again.
    """
    known = session.get(Checkpoint, (run_id, saved.step))
    if known is not None:
        again = known.removed_at is not None
        known.removed_at = None
        session.add(known)
        session.flush()
        return again
    checkpoint = Checkpoint(
        run_id=run_id,
        step=saved.step,
        next_micro_batch_id=saved.next_micro_batch_id,
        epoch=saved.epoch,
        loss=saved.loss,
        num_bytes=saved.num_bytes,
        path=saved.path,
        created_at=now,
    )
    session.add(checkpoint)
    session.flush()
    _announce(session, checkpoint, now)
    return True


def remove_checkpoint(session: Session, run_id: str, step: int, *, now: float) -> None:
    """The trainer removed the checkpoint's files; unknown steps are ignored."""
    known = session.get(Checkpoint, (run_id, step))
    if known is not None and known.removed_at is None:
        known.removed_at = now
        session.add(known)
        session.flush()


def set_acceptance_length(
    session: Session, run_id: str, step: int, acceptance_length: float, *, now: float
) -> None:
    """An evaluation measured this checkpoint."""
    known = session.get(Checkpoint, (run_id, step))
    if known is not None:
        known.acceptance_length = acceptance_length
        session.add(known)
        session.flush()
        _announce(session, known, now)


def list_checkpoints(
    session: Session, run_id: str, *, present_only: bool = True
) -> list[Checkpoint]:
    """Checkpoints by step; with `present_only` those whose files have not been removed."""
    query = select(Checkpoint).where(Checkpoint.run_id == run_id).order_by(col(Checkpoint.step))
    if present_only:
        query = query.where(col(Checkpoint.removed_at).is_(None))
    return list(session.exec(query))


def newest_checkpoint(session: Session, run_id: str) -> Checkpoint | None:
    """The present checkpoint with the greatest step, if any."""
    present = list_checkpoints(session, run_id)
    return present[-1] if present else None


def _announce(session: Session, checkpoint: Checkpoint, now: float) -> None:
    data = checkpoint_view(checkpoint).model_dump(mode="json")
    events.append(session, checkpoint.run_id, "checkpoint", data, now=now)
