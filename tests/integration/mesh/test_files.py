"""Closed files reach the archiver over a real link, again after it restarts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.links import LinkIdentity, LinkLimits, LinkSecurity, Listener, make_link_keys
from shared.api.workers import Peer, WorkerLease
from shared.config import resolve_config
from shared.messages import FileClosed
from shared.states import DesiredState, Role
from workers.runtime import WorkerContext
from workers.runtime.files import FileAnnouncer

KEYS = make_link_keys()


@asynccontextmanager
async def archiver(incarnation: str) -> AsyncIterator[tuple[Listener, Peer]]:
    identity = LinkIdentity("run-1", f"archiver-{incarnation}", "archiver", 0, incarnation)
    listener = await Listener.bind(
        "files",
        identity,
        host="127.0.0.1",
        limits=LinkLimits(4, 2**20),
        security=LinkSecurity.from_keys(KEYS),
        plane="zmq",
    )
    peer = Peer(
        worker_id=identity.worker_id,
        role=Role.ARCHIVER,
        rank=0,
        incarnation=incarnation,
        host="h",
        endpoints={"files": listener.endpoint},
    )
    try:
        yield listener, peer
    finally:
        await listener.close()


async def received(listener: Listener, num: int) -> list[FileClosed]:
    found = []
    async with asyncio.timeout(10):
        for _ in range(num):
            message = await listener.receive()
            assert isinstance(message.payload, FileClosed)
            found.append(message.payload)
            message.release()
    return found


async def test_files_are_announced_and_again_to_the_next_archiver(tmp_path: Path) -> None:
    lease = WorkerLease(
        worker_id="b",
        config=resolve_config(preset="demo").model_dump(mode="json"),
        run_folder=str(tmp_path),
        job=None,
        desired=DesiredState.RUN,
        peers=[],
        link_keys=KEYS,
    )
    announcer = FileAnnouncer()
    context = WorkerContext(
        lease, LinkIdentity("run-1", "b", "batcher", 0, "cccccccc"), announce=announcer.announce
    )
    for name in ("shard_0", "shard_1"):
        (tmp_path / name).write_bytes(name.encode())
        context.announce_file(tmp_path / name, "shard")
    context.announce_file(tmp_path / "removed", "shard")
    serving = asyncio.create_task(announcer.run(context))
    async with archiver("aaaaaaaa") as (listener, peer):
        context.take_answer(DesiredState.RUN, [peer], [])
        first = await received(listener, 2)
        assert [file.path for file in first] == ["shard_0", "shard_1"]
        assert first[0].sha256 == hashlib.sha256(b"shard_0").hexdigest()
        assert first[0].num_bytes == 7
        (tmp_path / "shard_2").write_bytes(b"later")
        context.announce_file(tmp_path / "shard_2", "shard")
        assert [file.path for file in await received(listener, 1)] == ["shard_2"]
    context.take_answer(DesiredState.RUN, [], [])
    async with archiver("bbbbbbbb") as (listener, peer):
        context.take_answer(DesiredState.RUN, [peer], [])
        again = await received(listener, 3)
        assert [file.path for file in again] == ["shard_0", "shard_1", "shard_2"]
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    context.failure.cancel()
