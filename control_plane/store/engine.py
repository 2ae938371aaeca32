"""SQLite behind an asyncio face: one writer, several readers, no statement on the event loop.

    write(function) -> writer thread (one) -> BEGIN IMMEDIATE .. COMMIT -> on_events (event loop)
    read(function)  -> reader threads      -> BEGIN .. ROLLBACK on a query-only connection

Invariants: at most one write transaction of this process exists at a time, so a write waits only
for other processes (a backup, a person with sqlite3), and for them it tries again until
`busy_deadline_s` has passed; a write that returned is committed; events appended in a write are
handed to `on_events` after the commit and in the order of commits.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import orjson
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError, ProgrammingError
from sqlalchemy.pool import QueuePool
from sqlmodel import Session

from control_plane.store.migrate import check_ours, upgrade
from control_plane.store.tables import Event
from services.files import disk_faults
from shared.errors import DatabaseFault, DiskFullError

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

NUM_READERS = 4
EVENTS_KEY = "appended_events"
_REMEDIES = {
    sqlite3.SQLITE_FULL: "free some space on that disk",
    sqlite3.SQLITE_READONLY: "make the file and its file system writable again",
    sqlite3.SQLITE_IOERR: "check the disk",
    sqlite3.SQLITE_CANTOPEN: "check the disk, the permissions and the limit of open files",
    sqlite3.SQLITE_CORRUPT: "stop the control plane and put back a copy from the folder 'backups'",
    sqlite3.SQLITE_NOTADB: "stop the control plane and put back a copy from the folder 'backups'",
}
_BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class Database:
    """The open database. Make one with `open`, and close it."""

    def __init__(self, path: Path, *, busy_deadline_s: float = 30.0) -> None:
        self.path = path
        # Why the last write failed; None when one has succeeded since.
        self.write_problem: str | None = None
        self.on_events: Callable[[list[Event]], None] | None = None
        self._busy_deadline_s = busy_deadline_s
        self._write_engine = _engine(path, begin="BEGIN IMMEDIATE", query_only=False)
        self._read_engine = _engine(path, begin="BEGIN", query_only=True)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="sqlite-reader")
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    async def open(cls, path: Path, *, busy_deadline_s: float = 30.0) -> Database:
        """Open or create the database, check it, and bring its tables up to date.

        Raises DatabaseFault when the file is not ours, is damaged, or was written by a newer
        version of the program.
        """
        database = cls(path, busy_deadline_s=busy_deadline_s)
        database._loop = asyncio.get_running_loop()
        try:
            await database._loop.run_in_executor(database._writer, database._prepare)
        except BaseException:
            await database.close()
            raise
        return database

    async def write(
        self, function: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `function(session, ...)` in a write transaction and commit.

        An error that it raises rolls everything back and is raised here.
        """
        call = partial(self._write, partial(_call, function, args, kwargs))
        return await self._running_loop().run_in_executor(self._writer, call)

    async def read(
        self, function: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `function(session, ...)` on one consistent view of the last committed state."""
        call = partial(self._read, partial(_call, function, args, kwargs))
        return await self._running_loop().run_in_executor(self._readers, call)

    async def check(self) -> None:
        """Whether the database answers, and takes writes if the last one failed: DatabaseFault."""
        await self.read(_look)
        if self.write_problem is not None:
            await self.write(_touch)

    async def backup(self, target: Path) -> int:
        """Copy the database, consistently, to a new file `target`; its size in bytes.

        DiskFullError, StorageFault or DatabaseFault when it cannot be; nothing is left then.
        """
        return await self._running_loop().run_in_executor(
            self._readers, partial(_copy, self.path, target)
        )

    async def close(self) -> None:
        """Finish what is queued, fold the write-ahead log into the file, and close."""
        await asyncio.to_thread(self._close)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "Database.open makes the usable object"
        return self._loop

    def _prepare(self) -> None:
        try:
            check_ours(self.path)
            with self._write_engine.connect() as connection:
                upgrade(connection, self.path)
        except DatabaseError as error:
            raise DatabaseFault(
                f"the database {self.path} cannot be used: {error.orig}; "
                "move the file away, or put a backup in its place"
            ) from error

    def _write(self, call: Callable[[Session], T]) -> T:
        deadline = time.monotonic() + self._busy_deadline_s
        while True:
            try:
                return self._attempt(call)
            except DatabaseError as error:
                if not _is_fault(error):
                    raise
                if _is_busy(error) and time.monotonic() <= deadline:
                    log.warning("the database is locked by another program; trying again")
                    continue
                cause = _cause(error)
                if _is_busy(error):
                    cause = (
                        f"it was locked by another program for {self._busy_deadline_s:.0f} s; "
                        "close the program that holds it"
                    )
                self.write_problem = f"the database {self.path} cannot be written: {cause}"
                raise DatabaseFault(self.write_problem) from error

    def _attempt(self, call: Callable[[Session], T]) -> T:
        with Session(self._write_engine, expire_on_commit=False) as session:
            driver = session.connection().connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            before = driver.total_changes
            result = call(session)
            session.flush()
            has_written = driver.total_changes > before
            session.commit()
            events: list[Event] = session.info.pop(EVENTS_KEY, [])
            session.expunge_all()
        if has_written:
            self.write_problem = None
        if events and self.on_events is not None:
            self._running_loop().call_soon_threadsafe(self.on_events, events)
        return result

    def _read(self, call: Callable[[Session], T]) -> T:
        try:
            with Session(self._read_engine, expire_on_commit=False) as session:
                result = call(session)
                session.expunge_all()
                return result
        except DatabaseError as error:
            if not _is_fault(error):
                raise
            raise DatabaseFault(
                f"the database {self.path} cannot be read: {_cause(error)}"
            ) from error

    def _close(self) -> None:
        self._readers.shutdown()
        self._writer.shutdown()
        self._read_engine.dispose()
        self._write_engine.dispose()


def _call(
    function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], session: Session
) -> T:
    return function(session, *args, **kwargs)


def _code(error: BaseException | None) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_busy(error: DatabaseError) -> bool:
    return _code(error.orig) in _BUSY_CODES


def _is_fault(error: DatabaseError) -> bool:
    """Whether file, disk or system are to blame, and not the statement."""
    return not isinstance(error, IntegrityError | ProgrammingError | DataError)


def _cause(error: DatabaseError) -> str:
    remedy = _REMEDIES.get(_code(error.orig))
    return f"{error.orig}; {remedy}" if remedy else str(error.orig)


def _look(session: Session) -> None:
    session.execute(text("SELECT 1 FROM runs LIMIT 1"))


def _touch(session: Session) -> None:
    session.execute(text("UPDATE alembic_version SET version_num = version_num"))


def _engine(path: Path, *, begin: str, query_only: bool) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=QueuePool,
        pool_size=1 if not query_only else NUM_READERS,
        max_overflow=0,
        connect_args={"check_same_thread": False, "timeout": 5.0},
        json_serializer=lambda value: orjson.dumps(value).decode(),
        json_deserializer=orjson.loads,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        # The driver's own transaction handling would open deferred transactions.
        connection.isolation_level = None
        cursor = connection.cursor()
        if not query_only:
            cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA busy_timeout = 5000")
        if query_only:
            cursor.execute("PRAGMA query_only = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def start(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _copy(source: Path, target: Path) -> int:
    partial_file = target.with_name(target.name + ".partial")
    try:
        with (
            disk_faults(target),
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as reader,
            closing(sqlite3.connect(partial_file)) as writer,
        ):
            reader.backup(writer)
        partial_file.replace(target)
    except sqlite3.Error as error:
        text = f"the backup {target} cannot be written: {error}"
        if _code(error) == sqlite3.SQLITE_FULL:
            raise DiskFullError(f"{text}; free some space on that disk") from error
        raise DatabaseFault(text) from error
    finally:
        partial_file.unlink(missing_ok=True)
    return target.stat().st_size
