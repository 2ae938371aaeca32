"""The generator loop.

    prompts -> split -> [engine: embedded groups, or requests to servers] -> store (log on disk)
                                                       store -> link `completions` -> batcher

The engine waits for nobody: the log on the disk is the buffer between it and the batcher. The link
serves any number of replays, also after generation has finished, until draining is asked.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack

from services.data.source import open_split
from services.data.tokenizer import TargetTokenizer
from services.generation import SamplingParameters
from services.links import LinkLimits, Listener
from shared.dflash.target_shape import TargetShape
from shared.errors import DataError
from shared.states import WorkerState
from workers.generator.embedded import generate_embedded
from workers.generator.rendering import Renderer
from workers.generator.served import ServedGeneration
from workers.generator.servers import open_servers
from workers.generator.serving import serve_completions
from workers.generator.store import CompletionStore
from workers.runtime import WorkerContext
from workers.runtime.target import checked_target

logger = logging.getLogger(__name__)


async def main(context: WorkerContext) -> None:
    """Generate, then serve until draining is asked.

    Raises DataError, TargetModelError, UpstreamError, DiskFullError, IntegrityError, InUseError.
    """
    bad_rows = context.folder.quarantine / "bad_rows.jsonl"
    opening = open_split(context.config, folder=context.folder.root, bad_rows_path=bad_rows)
    with ExitStack() as stack:
        split = await asyncio.to_thread(stack.enter_context, opening)
        if split.num_bad_rows:
            context.milestone(f"{split.num_bad_rows} broken rows of the prompts are in {bad_rows}")
        store = await asyncio.to_thread(CompletionStore, context, split.training)
        stack.callback(store.close)
        await _generate_and_serve(context, store)


async def _generate_and_serve(context: WorkerContext, store: CompletionStore) -> None:
    links = context.config.links
    async with await Listener.bind(
        "completions",
        context.identity,
        host=links.host,
        limits=LinkLimits(links.max_messages, links.max_bytes),
        security=context.security,
        plane=links.plane,
    ) as listener:
        context.endpoints["completions"] = listener.endpoint
        context.set_state(WorkerState.RUNNING)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(serve_completions(listener, store), name="serve")
            if not store.finished and await _generate(context, store):
                await store.finish()
            if store.finished:
                _check_outcome(store)
                context.milestone(
                    f"generation complete: {store.next_seq} of {store.num_prompts} prompts, "
                    f"{store.num_failed} failed"
                )
                context.set_state(WorkerState.FINISHED)
            await context.draining.wait()
            serving.cancel()


async def _generate(context: WorkerContext, store: CompletionStore) -> bool:
    """Run the configured engine; False when draining came first."""
    if not store.pending():
        return True
    config, section = context.config, context.config.generator
    folder = await checked_target(context)
    tokenizer = await asyncio.to_thread(TargetTokenizer.load, folder)
    sampling = SamplingParameters.of(section, tokenizer.eos_ids)
    shape = TargetShape.read(folder)
    room = min(
        config.batcher.max_length - config.gates.min_supervised_tokens,
        shape.max_position_embeddings - 1,
    )
    renderer = Renderer(tokenizer, section.thinking, room)
    if section.engine == "embedded":
        # torch is loaded only where a model runs in this process
        from services.embedded_engine import EmbeddedEngine

        engine = await asyncio.to_thread(
            EmbeddedEngine.load,
            folder,
            dtype=config.target.dtype,
            device=context.device,
            num_threads=section.num_threads,
        )
        context.milestone(f"embedded engine: {len(store.pending())} prompts to answer")
        return await generate_embedded(context, store, renderer, engine, sampling)
    async with open_servers(context, folder, tokenizer) as pool:
        urls = ", ".join(member.server.url for member in pool.members)
        context.milestone(f"servers {urls}: {len(store.pending())} prompts to answer")
        return await ServedGeneration(context, store, renderer, pool, sampling).run()


def _check_outcome(store: CompletionStore) -> None:
    if store.next_seq == 0:
        raise DataError(
            f"none of the {store.num_prompts} prompts got an answer; "
            "completions/failures.jsonl in the run folder has the causes"
        )
