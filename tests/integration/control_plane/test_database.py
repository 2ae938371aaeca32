"""The database among other programs, across crashes, and through its migrations."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlmodel import SQLModel

from control_plane.lock import FolderLock
from control_plane.store import Database, events, runs
from control_plane.store.migrate import APPLICATION_ID, alembic_config
from shared.errors import ConflictError, DatabaseFault, DiskFullError, EnvironmentFault
from shared.states import RunEvent
from tests.helpers.small_disks import fill, mounted_small_disk

ROOT = Path(__file__).parents[3]
WRITER = """
import asyncio, sys
from pathlib import Path
from control_plane.store import Database, runs, series
from shared.states import RunEvent

async def main() -> None:
    database = await Database.open(Path(sys.argv[1]))
    await database.write(runs.create, run_id="r", name="r", config={}, config_sha256="0",
                         progress={}, now=1.0)
    await database.write(runs.transition, "r", RunEvent.LAUNCH, now=2.0)
    await database.write(runs.transition, "r", RunEvent.READY, now=3.0)

    def half(session):
        runs.transition(session, "r", RunEvent.FAIL, now=4.0, reason="half done")
        series.add(session, "r", [series.Sample("loss", n, 1.0, 1.0) for n in range(20000)])
        print("in the middle", flush=True)
        sys.stdin.read()

    await database.write(half)

asyncio.run(main())
"""


async def make_run(database: Database) -> None:
    await database.write(
        runs.create,
        run_id="r",
        name="r",
        config={},
        config_sha256="0",
        progress={},
        now=1.0,
    )


async def test_a_writer_killed_in_mid_transaction_loses_only_that(tmp_path: Path) -> None:
    path = tmp_path / "control_plane.sqlite"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", WRITER, str(path)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"in the middle\n"
    process.kill()
    await process.communicate()
    database = await Database.open(path)
    run = await database.read(runs.get, "r")
    assert (run.state, run.reason) == ("running", None)
    states = [event.data["state"] for event in await database.read(events.list_after, "r", 0)]
    assert states == ["queued", "starting", "running"]
    await database.write(runs.transition, "r", RunEvent.FAIL, now=5.0)
    await database.close()


async def test_a_busy_database_delays_writes_and_loses_none(tmp_path: Path) -> None:
    path = tmp_path / "control_plane.sqlite"
    database = await Database.open(path)
    await make_run(database)
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    writes = [
        asyncio.create_task(database.write(events.append, "r", "log", {"n": n}, now=1.0))
        for n in range(20)
    ]
    release = threading.Timer(1.0, other.execute, args=("ROLLBACK",))
    release.start()
    await asyncio.gather(*writes)
    release.join()
    other.close()
    found = await database.read(events.list_last, "r", ["log"], limit=100)
    stored = [event.data["n"] for event in found]
    assert stored == list(range(20))
    await database.close()


async def test_a_database_held_for_too_long_is_a_clear_fault(tmp_path: Path) -> None:
    path = tmp_path / "control_plane.sqlite"
    database = await Database.open(path, busy_deadline_s=0.0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseFault, match="locked by another program"):
        await make_run(database)
    other.close()
    await database.close()


async def test_concurrent_writers_and_readers_see_whole_transactions(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "control_plane.sqlite")
    await make_run(database)

    async def write(number: int) -> None:
        def twice(session: object) -> None:
            for half in ("a", "b"):
                events.append(session, "r", "log", {"n": number, "half": half}, now=1.0)  # type: ignore[arg-type]

        await database.write(twice)

    async def read() -> None:
        found = await database.read(events.list_after, "r", 0)
        assert len([e for e in found if e.name == "log"]) % 2 == 0

    await asyncio.gather(*(write(n) for n in range(30)), *(read() for _ in range(30)))
    found = await database.read(events.list_after, "r", 0)
    assert len([e for e in found if e.name == "log"]) == 60
    await database.close()


async def test_a_backup_is_a_whole_database(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "control_plane.sqlite")
    await make_run(database)
    num_bytes = await database.backup(tmp_path / "copy.sqlite")
    await database.close()
    assert num_bytes == (tmp_path / "copy.sqlite").stat().st_size
    copy = await Database.open(tmp_path / "copy.sqlite")
    assert (await copy.read(runs.get, "r")).name == "r"
    await copy.close()


def test_migrations_from_nothing_give_the_tables_of_the_code(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.sqlite'}")
    with engine.connect() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []
        command.downgrade(config, "base")
        connection.commit()
        left = connection.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).scalars()
        assert list(left) == ["alembic_version"]
    engine.dispose()


async def test_databases_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.sqlite"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE songs (title TEXT)")
    connection.commit()
    connection.close()
    before = foreign.read_bytes()
    with pytest.raises(DatabaseFault, match="another program"):
        await Database.open(foreign)
    assert foreign.read_bytes() == before

    text = tmp_path / "text.sqlite"
    text.write_text("this is a letter, not a database\n" * 100)
    with pytest.raises(DatabaseFault, match="not a usable SQLite database"):
        await Database.open(text)


async def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "control_plane.sqlite"
    database = await Database.open(path)
    await database.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(DatabaseFault, match="newer version of dflash-mesh"):
        await Database.open(path)


async def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "control_plane.sqlite"
    database = await Database.open(path)
    await make_run(database)
    await database.close()
    data = bytearray(path.read_bytes())
    assert data[68:72] == APPLICATION_ID.to_bytes(4, "big")
    for start in range(4096, len(data), 4096):
        data[start : start + 2000] = b"\xa5" * 2000
    path.write_bytes(data)
    with pytest.raises(DatabaseFault, match=r"damaged|cannot be used|not a usable"):
        await Database.open(path)


async def test_an_interrupted_first_start_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "control_plane.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.commit()
    connection.close()
    database = await Database.open(path)
    await make_run(database)
    await database.close()


def test_one_control_plane_for_a_data_folder(tmp_path: Path) -> None:
    path = tmp_path / "data" / "control_plane.lock"
    with FolderLock(path), pytest.raises(ConflictError, match=f"pid {os.getpid()}"):
        FolderLock(path).acquire()
    with FolderLock(path):
        pass


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match=r"cannot be written"):
        FolderLock(tmp_path / "file" / "data" / "control_plane.lock").acquire()


async def test_a_backup_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "control_plane.sqlite")
    with mounted_small_disk(tmp_path / "disk", 64 * 1024) as disk:
        fill(disk, leave_bytes=8192)
        with pytest.raises(DiskFullError, match=r"copy\.sqlite.*free some space"):
            await database.backup(disk / "copy.sqlite")
        assert [p.name for p in disk.iterdir()] == ["ballast"]
    await database.close()


async def test_a_file_that_is_damaged_while_it_is_open_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "control_plane.sqlite"
    database = await Database.open(path)
    await make_run(database)
    await database.close()
    size = path.stat().st_size
    database = await Database.open(path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(DatabaseFault, match=r"cannot be read.*malformed.*backups"):
        await database.read(runs.get, "r")
    with pytest.raises(DatabaseFault, match=r"cannot be written.*malformed.*backups"):
        await make_run(database)
    assert "malformed" in str(database.write_problem)
    await database.close()


async def test_an_error_of_the_statement_is_no_fault_of_the_database(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "control_plane.sqlite")
    await make_run(database)
    with pytest.raises(IntegrityError):
        await make_run(database)  # the same id
    assert database.write_problem is None
    await database.close()
