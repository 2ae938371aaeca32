"""Target forwards and a trainer on real links, with a small batcher of the tests' own.

The batcher serves a fixed plan the way the real one does: it follows the trainer's position and
keeps to the window. On top it can send second copies and micro-batches out of order, which the
real one does only after a death.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch

from services.links import Channel, LinkIdentity, LinkLimits, LinkSecurity, Listener, make_link_keys
from services.target_models.frames import tensor_frame
from shared.api.events import WorkerEvent
from shared.api.workers import Peer, WorkerLease
from shared.config import RunConfig
from shared.errors import LinkError
from shared.messages import MicroBatch, TrainerPosition
from shared.states import DesiredState, Role
from workers.drafter_trainer.worker import main as trainer_main
from workers.runtime import WorkerContext
from workers.target_forward.worker import main as target_forward_main

RUN = "run-test"
LIMITS = LinkLimits(max_messages=8, max_bytes=2**24)
MAINS: dict[Role, Callable[[WorkerContext], Awaitable[None]]] = {
    Role.TARGET_FORWARD: target_forward_main,
    Role.DRAFTER_TRAINER: trainer_main,
}


class Mesh:
    """Workers of one run in this process, and the list of peers that the registry would keep."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.folder, self.config = folder, config
        self.keys = make_link_keys()
        self.contexts: dict[asyncio.Task[None], WorkerContext] = {}
        self._fixed: list[Peer] = []

    def identity(self, role: Role, rank: int = 0) -> LinkIdentity:
        incarnation = secrets.token_hex(8)
        return LinkIdentity(RUN, f"{role}-{rank}-{incarnation[:4]}", role, rank, incarnation)

    def add_listener(self, identity: LinkIdentity, endpoints: dict[str, str]) -> None:
        self._fixed.append(_peer(identity, endpoints))

    def remove_listener(self, identity: LinkIdentity) -> None:
        gone = identity.incarnation
        self._fixed = [peer for peer in self._fixed if peer.incarnation != gone]

    def start(self, role: Role, rank: int = 0) -> asyncio.Task[None]:
        lease = WorkerLease(
            worker_id="w",
            config=self.config.model_dump(mode="json"),
            run_folder=str(self.folder),
            job=None,
            desired=DesiredState.RUN,
            peers=[],
            link_keys=self.keys,
        )
        context = WorkerContext(lease, self.identity(role, rank), device="cpu")
        task = asyncio.create_task(MAINS[role](context))  # type: ignore[arg-type]
        self.contexts[task] = context
        return task

    async def kill(self, task: asyncio.Task[None]) -> None:
        self.contexts.pop(task)
        task.cancel()
        await asyncio.wait([task])

    async def drain(self, task: asyncio.Task[None]) -> WorkerContext:
        context = self.contexts[task]
        context.drain()
        await task
        return self.contexts.pop(task)

    async def tell_peers(self) -> None:
        """What heartbeat answers do, several times a second."""
        while True:
            alive = [c for t, c in self.contexts.items() if not t.done()]
            peers = [*self._fixed, *(_peer(c.identity, c.endpoints) for c in alive)]
            for context in alive:
                context.take_answer(context.desired, peers, [])
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        for task in list(self.contexts):
            await self.kill(task)


class TinyBatcher:
    """Serves `plan` to whoever asks, at most the window ahead of the trainer's position."""

    def __init__(self, mesh: Mesh, plan: list[MicroBatch], *, is_messy: bool = False) -> None:
        self.mesh, self.plan, self.is_messy = mesh, plan, is_messy
        self.position: TrainerPosition | None = None
        self.num_sent = 0
        self.finished = asyncio.Event()
        self._next = 0
        self._moved = asyncio.Event()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    async def reached(self, micro_batch_id: int) -> None:
        """Returns once everything below `micro_batch_id` is applied."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((micro_batch_id, future))
        await future

    async def run(self) -> None:
        identity = self.mesh.identity(Role.BATCHER)
        security = self.mesh_security()
        bind = {"host": "127.0.0.1", "limits": LIMITS, "security": security, "plane": "auto"}
        batches: Any = await Listener.bind("batches", identity, **bind)
        positions: Any = await Listener.bind("positions", identity, **bind)
        try:
            self.mesh.add_listener(
                identity, {"batches": batches.endpoint, "positions": positions.endpoint}
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(positions))
                group.create_task(self._dispatch(batches))
        finally:
            self.mesh.remove_listener(identity)
            await batches.close()
            await positions.close()

    def mesh_security(self) -> Any:
        return LinkSecurity.from_keys(self.mesh.keys)

    async def _follow(self, listener: Listener) -> None:
        while True:
            with await listener.receive() as received:
                message = received.payload
            assert isinstance(message, TrainerPosition)
            if message.reset:
                self._next = message.next_micro_batch_id
            self.position = message
            for wanted, future in self._waiters:
                if message.next_micro_batch_id >= wanted and not future.done():
                    future.set_result(None)
            if message.finished:
                self.finished.set()
            self._moved.set()

    async def _dispatch(self, listener: Listener) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                channel = await listener.accept()
                # What a dead worker held is dispatched again when a new one comes.
                if self.position is not None:
                    self._next = self.position.next_micro_batch_id
                group.create_task(self._serve(channel))

    async def _serve(self, channel: Channel) -> None:
        with contextlib.suppress(LinkError):
            while not channel.closed:
                room = self._room()
                for micro_batch in room:
                    await self._send(channel, micro_batch)
                if not room:
                    self._moved.clear()
                    await self._moved.wait()

    def _room(self) -> list[MicroBatch]:
        if self.position is None:
            return []
        end = min(self.position.next_micro_batch_id + self.position.window_messages, len(self.plan))
        ids = list(range(self._next, end))
        self._next = max(self._next, end)
        if self.is_messy:
            ids = [*reversed(ids), *ids[:2]]
        return [self.plan[number] for number in ids]

    async def _send(self, channel: Channel, micro_batch: MicroBatch) -> None:
        input_ids, loss_mask = content(micro_batch)
        await channel.send(
            micro_batch,
            [tensor_frame("input_ids", input_ids), tensor_frame("loss_mask", loss_mask)],
        )
        self.num_sent += 1


def make_plan(num_steps: int, num_in_step: int = 2) -> list[MicroBatch]:
    count = num_steps * num_in_step
    return [
        MicroBatch(
            run_id=RUN,
            micro_batch_id=number,
            epoch=number // 8,
            step=number // num_in_step,
            index_in_step=number % num_in_step,
            num_in_step=num_in_step,
            steps_total=num_steps,
            last=number == count - 1,
            sample_ids=[2 * number, 2 * number + 1],
            lengths=[20 + number % 4, 14],
            padded_length=24,
        )
        for number in range(count)
    ]


def content(micro_batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """The packed tokens and loss mask of a micro-batch: always the same ones."""
    generator = torch.Generator().manual_seed(micro_batch.micro_batch_id)
    num_tokens = sum(micro_batch.lengths)
    input_ids = torch.randint(10, 300, (num_tokens,), generator=generator)
    loss_mask = torch.ones(num_tokens, dtype=torch.uint8)
    loss_mask[:4] = 0
    return input_ids, loss_mask


def events_of(context: WorkerContext, kind: type[Any]) -> list[WorkerEvent]:
    return [event for event in context.pending_events(10_000) if isinstance(event, kind)]


def series_of(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the wall clock."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k != "time"} for record in records]


def _peer(identity: LinkIdentity, endpoints: dict[str, str]) -> Peer:
    return Peer(
        worker_id=identity.worker_id,
        role=identity.role,
        rank=identity.rank,
        incarnation=identity.incarnation,
        host="localhost",
        endpoints=dict(endpoints),
    )
