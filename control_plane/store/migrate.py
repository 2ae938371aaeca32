"""Is the file ours, is it sound, and are its tables those of this version.

A file that SQLite made for another program, that is damaged, or that a newer version of this
program has migrated, is refused with DatabaseFault and left as it is. An older one is migrated,
after a copy of it was put beside it.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from shared.errors import DatabaseFault

log = logging.getLogger(__name__)

APPLICATION_ID = 0x44464C4D  # 'DFLM', in the file's header


def check_ours(path: Path) -> None:
    """Raises DatabaseFault unless `path` is missing, empty, or a sound database of ours."""
    if not path.exists() or path.stat().st_size == 0:
        return
    connection = sqlite3.connect(path, timeout=30.0)
    try:
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application_id != APPLICATION_ID and num_tables > 0:
            raise DatabaseFault(
                f"{path} is a database of another program; choose another data folder"
            )
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        raise DatabaseFault(
            f"{path} is not a usable SQLite database ({error}); "
            "move it away, or put a backup in its place"
        ) from error
    finally:
        connection.close()
    if verdict != "ok":
        raise DatabaseFault(
            f"{path} is damaged ({verdict}); put a backup (folder 'backups' of the data folder) "
            "in its place"
        )


def upgrade(connection: Connection, path: Path) -> None:
    """Bring the tables to the newest revision; `connection` has no open transaction."""
    config = alembic_config()
    script = ScriptDirectory.from_config(config)
    head = script.get_current_head()
    current = _current_revision(connection)
    if current == head:
        return
    known = {revision.revision for revision in script.walk_revisions()}
    if current is not None and current not in known:
        raise DatabaseFault(
            f"{path} was written by a newer version of dflash-mesh (revision {current}); "
            "install that version, or choose another data folder"
        )
    if current is not None:
        _keep_copy(path, current)
    else:
        # First, so that a process killed in the middle leaves a file that is known as ours.
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.commit()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()
    log.info("database %s is at revision %s", path, head)


def alembic_config() -> Config:
    """The configuration that finds the packaged migrations."""
    config = Config()
    config.set_main_option(
        "script_location", str(Path(__file__).parent / "migrations").replace("%", "%%")
    )
    config.set_main_option("path_separator", "os")
    return config


def _current_revision(connection: Connection) -> str | None:
    has_table = connection.exec_driver_sql(
        "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
    ).first()
    row = (
        connection.exec_driver_sql("SELECT version_num FROM alembic_version").first()
        if has_table
        else None
    )
    connection.rollback()
    return str(row[0]) if row else None


def _keep_copy(path: Path, revision: str) -> None:
    copy = path.with_name(f"{path.name}.before-{revision}")
    source = sqlite3.connect(path)
    target = sqlite3.connect(copy)
    try:
        source.backup(target)
    finally:
        target.close()
        source.close()
