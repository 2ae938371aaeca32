"""What a role sees: events, pausing, draining, peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.links import LinkIdentity, make_link_keys
from shared.api.events import CheckpointRemoved, GateReport, LogLine
from shared.api.workers import Peer, WorkerLease
from shared.config import resolve_config
from shared.errors import DataError
from shared.states import DesiredState, Role, WorkerState
from workers.runtime import WorkerContext


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[WorkerContext]:
    lease = WorkerLease(
        worker_id="w",
        config=resolve_config(preset="demo").model_dump(mode="json"),
        run_folder=str(tmp_path),
        job=None,
        desired=DesiredState.RUN,
        peers=[],
        link_keys=make_link_keys(),
    )
    identity = LinkIdentity("run-1", "w", "batcher", 0, "aaaaaaaa")
    made = WorkerContext(lease, identity)
    yield made
    made.failure.cancel()


def peer(role: Role, rank: int = 0, **endpoints: str) -> Peer:
    return Peer(
        worker_id=f"{role}-{rank}",
        role=role,
        rank=rank,
        incarnation="bbbbbbbb",
        host="h",
        endpoints=endpoints,
    )


def answer(context: WorkerContext, desired: DesiredState, *peers: Peer) -> None:
    context.take_answer(desired, list(peers), [])


async def finished(task: asyncio.Task[Any]) -> Any:
    async with asyncio.timeout(5):
        return await task


async def one_turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_events_are_numbered_and_kept_until_acknowledged(context: WorkerContext) -> None:
    for step in range(5):
        context.emit(CheckpointRemoved, step=step)
    assert [e.number for e in context.pending_events(3)] == [0, 1, 2]
    context.acknowledge(3)
    assert [e.number for e in context.pending_events(9)] == [3, 4]
    context.acknowledge(3)
    assert len(context.pending_events(9)) == 2


async def test_urgent_events_ask_for_a_heartbeat_others_do_not(context: WorkerContext) -> None:
    context.milestone("hello")
    await one_turn()
    assert not context.beat_wanted.is_set()
    [line] = context.pending_events(1)
    assert isinstance(line, LogLine)
    context.emit(GateReport, blocked=True, report={})
    await one_turn()
    assert context.beat_wanted.is_set()


async def test_events_from_threads_keep_their_numbers_apart(context: WorkerContext) -> None:
    def emit() -> None:
        for _ in range(200):
            context.emit(CheckpointRemoved, step=1)

    await asyncio.gather(*(asyncio.to_thread(emit) for _ in range(4)))
    numbers = [e.number for e in context.pending_events(10_000)]
    assert numbers == list(range(800))


async def test_a_pause_holds_and_says_so_until_it_is_over(context: WorkerContext) -> None:
    context.set_state(WorkerState.RUNNING)
    await asyncio.wait_for(context.wait_while_paused(), 1)
    answer(context, DesiredState.PAUSE)
    held = asyncio.create_task(context.wait_while_paused())
    await one_turn()
    assert context.state is WorkerState.PAUSED
    assert not held.done()
    answer(context, DesiredState.RUN)
    await finished(held)
    assert context.state is WorkerState.RUNNING


async def test_a_drain_ends_a_pause(context: WorkerContext) -> None:
    answer(context, DesiredState.PAUSE)
    held = asyncio.create_task(context.wait_while_paused())
    await one_turn()
    answer(context, DesiredState.DRAIN)
    await finished(held)
    assert context.draining.is_set()
    assert context.state is WorkerState.DRAINING
    answer(context, DesiredState.RUN)
    assert context.draining.is_set()


async def test_waiting_for_a_peer_that_listens(context: WorkerContext) -> None:
    waiting = asyncio.create_task(context.wait_for_peer(Role.GENERATOR, "completions"))
    await one_turn()
    assert context.num_waiting_for_peers == 1
    answer(context, DesiredState.RUN, peer(Role.GENERATOR))
    await one_turn()
    assert not waiting.done()
    answer(context, DesiredState.RUN, peer(Role.GENERATOR, completions="tcp://h:1"))
    found = await finished(waiting)
    assert found.endpoints["completions"] == "tcp://h:1"
    assert context.num_waiting_for_peers == 0


async def test_peers_change_only_when_they_do(context: WorkerContext) -> None:
    first = [peer(Role.TARGET_FORWARD, rank) for rank in (1, 0)]
    answer(context, DesiredState.RUN, *first)
    assert [p.rank for p in context.peers(Role.TARGET_FORWARD)] == [0, 1]
    changed = asyncio.create_task(context.peers_changed())
    await one_turn()
    answer(context, DesiredState.RUN, *first)
    await one_turn()
    assert not changed.done()
    answer(context, DesiredState.RUN)
    await finished(changed)


async def test_fail_keeps_the_first_error(context: WorkerContext) -> None:
    context.fail(DataError("first"))
    context.fail(DataError("second"))
    with pytest.raises(DataError, match="first"):
        await context.failure


async def test_keys_stay_out_of_the_representation(context: WorkerContext) -> None:
    assert context.security is not None
    assert context.security.server_secret.decode() not in repr(context.security)
