"""Generation with the embedded engine: fixed groups in prompt order.

Group g is training prompts g * group_size .. (g + 1) * group_size - 1, whatever is done already, so
a group generated again gives the same answers and the log does not depend on interruptions. The
engine computes in a thread; between groups the loop holds while paused and ends when draining.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.data.prompts import PromptRow
from services.embedded_engine import EmbeddedEngine
from services.generation import SamplingParameters, prompt_seed
from shared.errors import DataError
from workers.generator.rendering import Renderer
from workers.generator.store import CompletionStore, Generated
from workers.runtime import WorkerContext


async def generate_embedded(
    context: WorkerContext,
    store: CompletionStore,
    renderer: Renderer,
    engine: EmbeddedEngine,
    sampling: SamplingParameters,
) -> bool:
    """Generate what is missing; False when draining came first."""
    size = context.config.generator.group_size
    for first in range(0, len(store.training), size):
        group = store.training[first : first + size]
        if all(store.is_done(row) for row in group):
            continue
        await context.wait_while_paused()
        if context.draining.is_set():
            return False
        rendered = await _render_group(store, renderer, group)
        if all(store.is_done(row) for row, _ in rendered):
            continue
        with context.meter.busy():
            items = await asyncio.to_thread(
                _generate_group, context.config.seed, renderer, engine, sampling, rendered
            )
        await store.add([item for item in items if not store.is_done(item.row)])
    return True


async def _render_group(
    store: CompletionStore, renderer: Renderer, group: Sequence[PromptRow]
) -> list[tuple[PromptRow, list[int]]]:
    """The group's usable prompts; the others are given up, since rendering never changes."""
    rendered: list[tuple[PromptRow, list[int]]] = []
    for row in group:
        try:
            rendered.append((row, renderer.render(row)))
        except DataError as error:
            if store.num_attempts(row) == 0:
                await store.fail(row, error, final=True)
    return rendered


def _generate_group(
    run_seed: int,
    renderer: Renderer,
    engine: EmbeddedEngine,
    sampling: SamplingParameters,
    rendered: list[tuple[PromptRow, list[int]]],
) -> list[Generated]:
    seeds = [prompt_seed(run_seed, row.sha256, row.occurrence) for row, _ in rendered]
    answers = engine.generate([ids for _, ids in rendered], seeds, sampling)
    return [
        Generated(
            row=row,
            prompt_ids=ids,
            answer=answer,
            text=renderer.tokenizer.decode(answer.output_ids),
            seed=seed if sampling.temperature > 0 else None,
        )
        for (row, ids), answer, seed in zip(rendered, answers, seeds, strict=True)
    ]
