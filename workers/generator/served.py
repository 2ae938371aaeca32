"""Generation with outside servers: many requests at once, appended in order of arrival.

    pending prompts -> [spawn: waits for a slot] -> ask -> results (bounded) -> [append, groups]

`spawn` waits for one of the slots, whose number follows throughput (in_flight.py); `ask` waits for
a server and for room in the results; `append` waits for results. While paused no new request
leaves; draining lets what is under way arrive for half the drain deadline. A prompt that fails is
tried once more at the end. When many fail in a row and none succeeds, the server is at fault, not
the prompts: the worker ends with the last cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from services.data.prompts import PromptRow
from services.generation import SamplingParameters, prompt_seed
from services.servers import CallRefused, Chat, PromptRefused, ServerPool, ServersGone
from shared.errors import DataError, UpstreamError, WrongModelError
from shared.states import DesiredState
from workers.generator.concurrency import ConcurrencyController
from workers.generator.in_flight import RequestSlots, affordable_requests
from workers.generator.rendering import Renderer
from workers.generator.server_figures import ServerMonitor
from workers.generator.store import CompletionStore, Generated
from workers.runtime import WorkerContext

_MAX_ATTEMPTS = 2
_FAILURES_IN_A_ROW = 8
_MAX_GROUP = 64
_FIRST_REQUESTS = 64


class ServedGeneration:
    """One run's requests to its servers."""

    def __init__(
        self,
        context: WorkerContext,
        store: CompletionStore,
        renderer: Renderer,
        pool: ServerPool,
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
        controller = ConcurrencyController(
            first=_FIRST_REQUESTS, most=affordable_requests(context.config.generator.concurrency)
        )
        self._slots = RequestSlots(controller, asyncio.get_running_loop().time)

    async def run(self) -> bool:
        """Generate what is missing; False when draining came first."""
        monitor = ServerMonitor(self._context, self._pool, self._slots)
        monitor.attach()
        watching = asyncio.create_task(monitor.run(), name="server figures")
        try:
            while pending := self._store.pending():
                # Those that have failed come last; each pass tries every pending prompt once.
                await self._pass(self._store.untried(pending) or pending)
                if self._context.draining.is_set():
                    return False
            return True
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _pass(self, rows: Sequence[PromptRow]) -> None:
        async with asyncio.TaskGroup() as group:
            append = group.create_task(self._append(), name="append")
            await self._ask_all(iter(rows))
            await self._results.put(None)
            await append

    async def _ask_all(self, source: Iterator[PromptRow]) -> None:
        asking: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            deadline = group.create_task(self._cancel_when_drained(asking), name="drain")
            await self._spawn(source, group, asking)
            while asking:
                await asyncio.wait(asking)
            deadline.cancel()

    async def _spawn(
        self,
        source: Iterator[PromptRow],
        group: asyncio.TaskGroup,
        asking: set[asyncio.Task[None]],
    ) -> None:
        """A task for each prompt, as slots become free, until the source or the run ends."""
        context = self._context
        while True:
            # While draining, requests end or are cancelled, so a slot becomes free in any case.
            await self._slots.acquire()
            if context.desired is DesiredState.PAUSE:
                await context.wait_while_paused()
                self._slots.forget()
            row = None if context.draining.is_set() else next(source, None)
            if row is None:
                self._slots.release(None)
                return
            task = group.create_task(self._ask(row), name=f"ask {row.index}")
            asking.add(task)
            task.add_done_callback(asking.discard)

    async def _cancel_when_drained(self, asking: set[asyncio.Task[None]]) -> None:
        await self._context.draining.wait()
        await asyncio.sleep(self._context.config.supervision.drain_deadline_s / 2)
        for task in asking:
            task.cancel()

    async def _ask(self, row: PromptRow) -> None:
        num_tokens: int | None = None
        try:
            item = await self._generate(row)
            num_tokens = len(item.answer.output_ids)
        except DataError as error:
            await self._store.fail(row, error, final=True)
        except (WrongModelError, CallRefused, ServersGone):
            raise
        except UpstreamError as error:
            await self._count_failure(row, error)
        else:
            self._num_failures_in_a_row, self._has_succeeded = 0, True
            await self._results.put(item)
        finally:
            self._slots.release(num_tokens)

    async def _generate(self, row: PromptRow) -> Generated:
        prompt_ids = self._renderer.render(row)
        seed = prompt_seed(self._context.config.seed, row.sha256, row.occurrence)
        with self._context.meter.busy():
            chat = Chat(row.messages, self._renderer.thinking, row.tools)
            answer = await self._pool.generate(prompt_ids, seed, self._sampling, chat)
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
