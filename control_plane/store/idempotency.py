"""First answers to POST calls, by `Idempotency-Key`.

    begin -> None: this call is the first, carry it out, then `finish` (or `forget` on failure)
          -> a row with a status: the stored answer
          -> a row without one: another call with the key is being carried out

Rows whose call a killed process left unfinished are removed at start: what such a call did may
have been stored or not, and the caller who repeats it looks at a fresh answer.
"""

from __future__ import annotations

from sqlalchemy import delete
from sqlmodel import Session, col

from control_plane.store.tables import IdempotencyKey
from shared.errors import IdempotencyError

KEEP_S = 24 * 3600.0


def begin(session: Session, key: str, fingerprint: str, *, now: float) -> IdempotencyKey | None:
    """Claim the key; IdempotencyError when it was used for another request."""
    known = session.get(IdempotencyKey, key)
    if known is None:
        session.add(IdempotencyKey(key=key, fingerprint=fingerprint, created_at=now))
        session.flush()
        return None
    if known.fingerprint != fingerprint:
        raise IdempotencyError(
            "this Idempotency-Key was used for another request (method, path or body differ); "
            "use a new key for a new request"
        )
    return known


def finish(
    session: Session, key: str, *, status: int, headers: dict[str, str], body: bytes
) -> None:
    """Store the first answer."""
    known = session.get(IdempotencyKey, key)
    assert known is not None, "begin comes before finish"
    known.status, known.headers, known.body = status, headers, body
    session.add(known)


def forget(session: Session, key: str) -> None:
    """The call failed in a way that a repetition may cure: the key is free again."""
    session.exec(delete(IdempotencyKey).where(col(IdempotencyKey.key) == key))


def prune(session: Session, *, now: float, unfinished: bool = False) -> None:
    """Forget answers older than a day and, with `unfinished`, claims without an answer."""
    session.exec(delete(IdempotencyKey).where(col(IdempotencyKey.created_at) < now - KEEP_S))
    if unfinished:
        session.exec(delete(IdempotencyKey).where(col(IdempotencyKey.status).is_(None)))
