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
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import orjson
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import QueuePool
from sqlmodel import Session

from control_plane.store.migrate import check_ours, upgrade
from control_plane.store.tables import Event
from shared.errors import DatabaseFault

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

NUM_READERS = 4
EVENTS_KEY = "appended_events"
_BUSY_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class Database:
    """The open database. Make one with `open`, and close it."""

    def __init__(self, path: Path, *, busy_deadline_s: float = 30.0) -> None:
        self.path = path
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

    async def backup(self, target: Path) -> int:
        """Copy the database, consistently, to a new file `target`; its size in bytes."""
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
            except OperationalError as error:
                if not _is_busy(error):
                    raise DatabaseFault(f"the database {self.path} failed: {error.orig}") from error
                if time.monotonic() > deadline:
                    raise DatabaseFault(
                        f"the database {self.path} was locked by another program for "
                        f"{self._busy_deadline_s:.0f} s; close the program that holds it"
                    ) from error
                log.warning("the database is locked by another program; trying again")

    def _attempt(self, call: Callable[[Session], T]) -> T:
        with Session(self._write_engine, expire_on_commit=False) as session:
            result = call(session)
            session.commit()
            events: list[Event] = session.info.pop(EVENTS_KEY, [])
            session.expunge_all()
        if events and self.on_events is not None:
            self._running_loop().call_soon_threadsafe(self.on_events, events)
        return result

    def _read(self, call: Callable[[Session], T]) -> T:
        try:
            with Session(self._read_engine, expire_on_commit=False) as session:
                result = call(session)
                session.expunge_all()
                return result
        except OperationalError as error:
            raise DatabaseFault(f"the database {self.path} failed: {error.orig}") from error

    def _close(self) -> None:
        self._readers.shutdown()
        self._writer.shutdown()
        self._read_engine.dispose()
        self._write_engine.dispose()


def _call(
    function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], session: Session
) -> T:
    return function(session, *args, **kwargs)


def _is_busy(error: OperationalError) -> bool:
    code = getattr(error.orig, "sqlite_errorcode", 0)
    return (code & 0xFF) in _BUSY_CODES


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
    partial_file.unlink(missing_ok=True)
    reader = sqlite3.connect(f"file:{source}?mode=ro", uri=True)
    try:
        writer = sqlite3.connect(partial_file)
        try:
            reader.backup(writer)
        finally:
            writer.close()
    finally:
        reader.close()
    partial_file.replace(target)
    return target.stat().st_size
