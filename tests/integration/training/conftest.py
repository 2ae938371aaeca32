"""A run's configuration on the tiny target, and meshes that leave nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from shared.config import RunConfig
from shared.config.loading import resolve_config
from tests.helpers.training_mesh import Mesh


@pytest.fixture
def config() -> RunConfig:
    return resolve_config(
        overrides={
            "target.path": "builtin:tiny",
            "target.dtype": "float32",
            "data.prompts": "builtin:tiny",
            "drafter.num_hidden_layers": 2,
            "drafter.block_size": 4,
            "drafter.intermediate_size": 64,
            "trainer.dtype": "float32",
            "trainer.num_anchors": 4,
            "trainer.lr": 1e-2,
            "trainer.checkpoint_every_steps": 2,
            "trainer.num_threads": 1,
            "target_forward.num_threads": 1,
            "links.max_messages": 4,
        }
    )


@pytest.fixture
async def make_mesh(config: RunConfig) -> AsyncIterator[Callable[..., Mesh]]:
    meshes: list[tuple[Mesh, asyncio.Task[None]]] = []

    def make(folder: Path) -> Mesh:
        mesh = Mesh(folder, config)
        meshes.append((mesh, asyncio.create_task(mesh.tell_peers())))
        return mesh

    yield make
    for mesh, telling in meshes:
        await mesh.close()
        telling.cancel()
        await asyncio.wait([telling])
