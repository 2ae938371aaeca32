"""The control plane's state: SQLite tables, and one module of functions for each concept.

Every function takes a `sqlmodel.Session` first and is called through the database, which runs it
on its own threads in one transaction:

    run = await database.read(runs.get, run_id)
    run = await database.write(runs.transition, run_id, RunEvent.PAUSE, now=time.time())

Rows that come back are detached copies; changing one changes nothing in the database.
"""

from control_plane.store.engine import Database

__all__ = ["Database"]
