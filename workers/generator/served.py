"""Generation with outside servers: many requests at once, appended in order of arrival.

    pending prompts -> [concurrency x ask] -> results (bounded) -> [append, groups what has arrived]

`ask` waits for a server and for room in the results; `append` waits for results. While paused no
new request leaves; draining lets what is under way arrive for half the drain deadline. A prompt
that fails is tried once more at the end. When many fail in a row and none succeeds, the server is
at fault, not the prompts: the worker ends with the last cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from services.data.prompts import PromptRow
from services.generation import SamplingParameters, prompt_seed
from services.sglang import CallRefused, PromptRefused, SglangPool
from shared.errors import DataError, UpstreamError, WrongModelError
from workers.generator.rendering import Renderer
from workers.generator.store import CompletionStore, Generated
from workers.runtime import WorkerContext

_MAX_ATTEMPTS = 2
_FAILURES_IN_A_ROW = 8
_MAX_GROUP = 64


class ServedGeneration:
    """One run's requests to its servers."""

    def __init__(
        self,
        context: WorkerContext,
        store: CompletionStore,
        renderer: Renderer,
        pool: SglangPool,
        sampling: SamplingParameters,
    ) -> None:
        self._context = context
        self._store = store
        self._renderer = renderer
        self._pool = pool
        self._sampling = sampling
        self._results: asyncio.Queue[Generated | None] = asyncio.Queue(2 * _MAX_GROUP)
        self._num_failures_in_a_row = 0
        self._has_succeeded = False

    async def run(self) -> bool:
        """Generate what is missing; False when draining came first."""
        while pending := self._store.pending():
            # Those that have failed come last; each pass tries every pending prompt once.
            await self._pass(self._store.untried(pending) or pending)
            if self._context.draining.is_set():
                return False
        return True

    async def _pass(self, rows: Sequence[PromptRow]) -> None:
        source = iter(rows)
        concurrency = min(self._context.config.generator.concurrency, len(rows))
        async with asyncio.TaskGroup() as group:
            append = group.create_task(self._append(), name="append")
            await self._ask_all(source, concurrency)
            await self._results.put(None)
            await append

    async def _ask_all(self, source: Iterator[PromptRow], concurrency: int) -> None:
        async with asyncio.TaskGroup() as group:
            asking = [
                group.create_task(self._ask(source), name=f"ask {number}")
                for number in range(concurrency)
            ]
            deadline = group.create_task(self._cancel_when_drained(asking), name="drain")
            await asyncio.wait(asking)
            deadline.cancel()

    async def _cancel_when_drained(self, asking: Sequence[asyncio.Task[None]]) -> None:
        await self._context.draining.wait()
        await asyncio.sleep(self._context.config.supervision.drain_deadline_s / 2)
        for task in asking:
            task.cancel()

    async def _ask(self, source: Iterator[PromptRow]) -> None:
        context = self._context
        while True:
            await context.wait_while_paused()
            row = next(source, None)
            if row is None or context.draining.is_set():
                return
            try:
                item = await self._generate(row)
            except DataError as error:
                await self._store.fail(row, error, final=True)
            except (WrongModelError, CallRefused):
                raise
            except UpstreamError as error:
                await self._count_failure(row, error)
            else:
                self._num_failures_in_a_row, self._has_succeeded = 0, True
                await self._results.put(item)

    async def _generate(self, row: PromptRow) -> Generated:
        prompt_ids = self._renderer.render(row)
        seed = prompt_seed(self._context.config.seed, row.sha256, row.occurrence)
        with self._context.meter.busy():
            answer = await self._pool.generate(prompt_ids, seed, self._sampling)
        return Generated(
            row=row,
            prompt_ids=prompt_ids,
            answer=answer,
            text=self._renderer.tokenizer.decode(answer.output_ids),
            seed=seed if self._sampling.temperature > 0 else None,
        )

    async def _count_failure(self, row: PromptRow, error: UpstreamError) -> None:
        is_refused = isinstance(error, PromptRefused)
        self._num_failures_in_a_row += 1
        # A server that has answered may well refuse some prompts; one that never did is at fault.
        is_servers_fault = not (is_refused and self._has_succeeded)
        limit = min(_FAILURES_IN_A_ROW, self._store.num_prompts)
        if is_servers_fault and self._num_failures_in_a_row >= limit:
            raise error
        final = is_refused or self._store.num_attempts(row) + 1 >= _MAX_ATTEMPTS
        await self._store.fail(row, error, final=final)

    async def _append(self) -> None:
        """Append results until the end mark, as many at once as have arrived."""
        while True:
            first = await self._results.get()
            items = [first]
            while items[-1] is not None and len(items) < _MAX_GROUP and not self._results.empty():
                items.append(self._results.get_nowait())
            await self._store.add([item for item in items if item is not None])
            if items[-1] is None:
                return
