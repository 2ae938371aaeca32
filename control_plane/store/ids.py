"""Identifiers: sortable by time where people read them, and safe as names of folders."""

from __future__ import annotations

import secrets
import time

from sqlalchemy import literal_column
from sqlalchemy.sql.elements import ColumnElement
from sqlmodel import SQLModel


def new_run_id(now: float) -> str:
    """'20261130-224601-3f9a1c': UTC time of creation and six random hex digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(3)}"


def new_job_id(kind: str) -> str:
    """'export-91c2...' or 'eval-...': unguessable enough never to clash."""
    return f"{kind}-{secrets.token_hex(8)}"


def new_worker_id(role: str, rank: int, incarnation: str) -> str:
    """'drafter_trainer-0-9b1f7c2e': role, rank, the first eight digits of the incarnation,
    and a random tail, since an incarnation is unique only within its run."""
    return f"{role}-{rank}-{incarnation[:8]}-{secrets.token_hex(3)}"


def made_order(table: type[SQLModel]) -> ColumnElement[int]:
    """What rows of `table` are sorted by to come in the order in which they were made: their
    times would not do, since the clock of the machine may have been set back in between."""
    return literal_column(f"{table.__tablename__}.rowid")
