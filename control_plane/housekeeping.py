"""What the database forgets in time: old answers to POST calls and old events of each run."""

from __future__ import annotations

import asyncio
import logging
import time

from sqlmodel import Session

from control_plane.store import Database, events, idempotency, runs
from shared.errors import EnvironmentFault

log = logging.getLogger(__name__)

INTERVAL_S = 3600.0


async def keep_house(database: Database) -> None:
    """Prune now and then, until cancelled."""
    while True:
        try:
            await database.write(idempotency.prune, now=time.time())
            for run_id in await database.read(runs.list_ids):
                await database.write(_prune_events, run_id)
        except EnvironmentFault as error:
            log.warning("pruning is put off: %s", error)
        await asyncio.sleep(INTERVAL_S)


def _prune_events(session: Session, run_id: str) -> int:
    return events.prune(session, run_id)
