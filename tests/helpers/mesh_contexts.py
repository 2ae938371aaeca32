"""Worker contexts without a control plane: a lease made by hand, peers passed by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.links import LinkIdentity, make_link_keys
from shared.api.workers import Peer, WorkerLease
from shared.config import RunConfig, resolve_config
from shared.states import DesiredState, Role
from workers.runtime import WorkerContext

TINY: dict[str, Any] = {
    "name": "test",
    "seed": 3,
    "target": {"path": "builtin:tiny", "dtype": "float32"},
    "data": {"prompts": "builtin:tiny", "num_prompts": 25, "max_held_out": 2},
    "generator": {
        "thinking": True,
        "temperature": 0.7,
        "max_new_tokens": 200,
        "group_size": 8,
        "num_threads": 1,
        "batch_completions": 10,
    },
    "batcher": {"segment_samples": 5, "max_length": 400, "micro_batch_size": 2},
    "drafter": {"num_hidden_layers": 2, "block_size": 8},
    "train": {"num_epochs": 2, "micro_batches_per_step": 2},
}


def tiny_config(overrides: dict[str, Any] | None = None) -> RunConfig:
    return resolve_config(TINY, overrides=overrides or {})


class Workplace:
    """One run's contexts; `publish` shows each the others' endpoints."""

    def __init__(self, root: Path, config: RunConfig) -> None:
        self.root, self.config = root, config
        self.contexts: dict[tuple[Role, int], WorkerContext] = {}
        self._keys = make_link_keys()
        self._count = 0

    def context(self, role: Role, rank: int = 0) -> WorkerContext:
        """A new incarnation of a worker; it takes the place of the one before."""
        self._count += 1
        incarnation = f"{self._count:08x}"
        lease = WorkerLease(
            worker_id=f"{role}-{rank}-{incarnation}",
            config=self.config.model_dump(mode="json"),
            run_folder=str(self.root),
            desired=DesiredState.RUN,
            peers=[],
            link_keys=self._keys,
        )
        identity = LinkIdentity("run1", lease.worker_id, role, rank, incarnation)
        context = WorkerContext(lease, identity)
        self.contexts[role, rank] = context
        return context

    def publish(self, overrides: list[str] | None = None) -> None:
        """What a heartbeat answer does, for everybody."""
        peers = [
            Peer(
                worker_id=one.worker_id,
                role=one.role,
                rank=one.rank,
                incarnation=one.incarnation,
                host="here",
                endpoints=dict(one.endpoints),
            )
            for one in self.contexts.values()
        ]
        for one in self.contexts.values():
            one.take_answer(
                one.desired,
                [p for p in peers if p.worker_id != one.worker_id],
                overrides if overrides is not None else one.overrides,
            )

    async def until(self, condition: Callable[[], Any], timeout_s: float = 40) -> None:
        """Publish what changes until `condition` holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self.publish()
                await asyncio.sleep(0.02)


def events(context: WorkerContext, kind: type[Any]) -> list[Any]:
    """Events of a kind that the worker has emitted and nobody has acknowledged."""
    return [event for event in context.pending_events(10**6) if isinstance(event, kind)]


async def kill(task: asyncio.Task[Any]) -> None:
    """End a role's main as a crash would: nothing is saved on the way out."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
