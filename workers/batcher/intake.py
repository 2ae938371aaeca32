"""The consumer of the completions log: gates, segments, and the verdict on the window.

    generator --Completions--> [builder in a thread] -> desk (segments, gates) -> dispatch
                                        `-> GateReport, SegmentSealed -> control plane

Asks the generator for the log from the first completion not yet judged, again after every loss of
the link. When a gate blocks, nothing more is taken in and nothing new is dispatched until a person
overrides it; the generator then waits for credit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from services.data.dataset import DatasetInfo, Segment
from services.links import Channel, LinkLimits
from shared.api.events import GateReport, SegmentSealed
from shared.api.workers import QueueReport
from shared.errors import DataError, LinkError
from shared.messages import Completion, Completions, CompletionsFrom
from shared.states import Role
from workers.batcher.builder import DatasetBuilder
from workers.batcher.desk import DispatchDesk
from workers.batcher.setup import BatcherSetup
from workers.runtime import WorkerContext
from workers.runtime.dialing import dial_peer

logger = logging.getLogger(__name__)

GATES = "gates"  # the name of the override
_REPORT_EVERY_S = 5.0
_CREDIT_MESSAGES = 4


class Intake:
    """Runs until the data set is complete."""

    def __init__(self, context: WorkerContext, setup: BatcherSetup, desk: DispatchDesk) -> None:
        self._context = context
        self._setup = setup
        self._desk = desk
        self._builder: DatasetBuilder | None = None
        self._channel: Channel | None = None
        self._reported_s = 0.0

    def queue_report(self) -> QueueReport:
        """Messages of completions that have arrived and are not judged yet."""
        if self._channel is not None and not self._channel.closed:
            return self._channel.stats("received").queue_report("completions")
        return QueueReport(
            name="completions", depth=0, capacity=_CREDIT_MESSAGES, bytes=0, capacity_bytes=0
        )

    async def run(self) -> DatasetInfo:
        """Take in the whole log; the complete data set."""
        links = self._context.config.links
        limits = LinkLimits(_CREDIT_MESSAGES, links.max_bytes)
        while True:
            with self._context.meter.waiting_for(Role.GENERATOR):
                channel = await dial_peer(self._context, Role.GENERATOR, "completions", limits)
            self._channel = channel
            try:
                builder = await self._follow(channel)
                return await self._complete(builder)
            except LinkError as error:
                logger.info("link to the generator ended: %s", error)
            finally:
                await channel.close()

    async def _follow(self, channel: Channel) -> DatasetBuilder:
        """Take in what comes until the end of the log."""
        context = self._context
        start = self._builder.next_seq if self._builder else 0
        await channel.send(CompletionsFrom(start))
        while True:
            await context.wait_while_paused()
            with context.meter.waiting_for(Role.GENERATOR):
                received = await channel.receive()
            with received:
                message = received.payload
                if not isinstance(message, Completions):
                    raise LinkError(
                        f"link 'completions' carries Completions, {type(message).__name__} came"
                    )
                builder = self._builder_for(message.num_prompts)
                await self._take(builder, message.items)
            if message.final:
                return builder

    def _builder_for(self, num_prompts: int) -> DatasetBuilder:
        if self._builder is None:
            self._builder = self._setup.builder(self._context.folder, num_prompts)
            if self._desk.plan is None:
                self._desk.start_plan(self._setup.plan(num_prompts))
        if self._builder.num_prompts != num_prompts:
            raise DataError(
                f"the run began with {self._builder.num_prompts} training prompts, the generator "
                f"now has {num_prompts}: the prompts file has changed. Start a new run for it"
            )
        return self._builder

    async def _take(self, builder: DatasetBuilder, items: Sequence[Completion]) -> None:
        while items:
            with self._context.meter.busy():
                taken = await asyncio.to_thread(
                    builder.take_some, items, stop_when_blocked=not self._overridden
                )
            items = items[taken.num_taken :]
            for segment in taken.sealed:
                self._add_segment(segment)
            if builder.caught_up:
                self._context.progress.update(
                    samples_accepted=builder.num_accepted, samples_quarantined=builder.num_rejected
                )
            await self._judge_gates(builder, final=False)

    @property
    def _overridden(self) -> bool:
        return GATES in self._context.overrides

    async def _judge_gates(self, builder: DatasetBuilder, *, final: bool) -> None:
        """Open the gates after a good window; when they block, wait for a person."""
        verdict = builder.verdict(final=final)
        if verdict.blocked and not self._overridden:
            if self._desk.gates_open:
                self._desk.gates_open = False
                self._desk.notify()
            logger.warning("quality gates block the run: %s", verdict.reason)
            self._report(builder, blocked=True, reason=verdict.text)
            await self._context.wait_for_override(GATES)
            self._context.milestone("a person has overridden the quality gates")
        if not self._desk.gates_open and (builder.keeper.window_passed or final):
            builder.open_gates()
            self._desk.gates_open = True
            self._desk.notify()
            self._report(builder)
        elif time.monotonic() - self._reported_s >= _REPORT_EVERY_S and builder.caught_up:
            self._report(builder)

    def _report(
        self, builder: DatasetBuilder, *, blocked: bool = False, reason: str | None = None
    ) -> None:
        self._reported_s = time.monotonic()
        self._context.emit(
            GateReport, blocked=blocked, reason=reason, report=builder.keeper.report()
        )

    async def _complete(self, builder: DatasetBuilder) -> DatasetInfo:
        """The log has ended: judge what there is, seal the rest."""
        await self._judge_gates(builder, final=True)
        segment = await asyncio.to_thread(builder.finish)
        if segment is not None:
            self._add_segment(segment)
        for path, kind in builder.files():
            self._context.announce_file(path, kind)
        assert self._desk.plan is not None
        self._desk.plan.mark_complete()
        self._desk.notify()
        self._report(builder)
        return builder.info

    def _add_segment(self, segment: Segment) -> None:
        """A newly sealed segment: into the plan, and known to everybody."""
        path = self._context.folder.shard(segment.index)
        assert self._desk.plan is not None
        self._desk.plan.add_segment(self._desk.store.add(path, segment.num_bytes))
        self._desk.notify()
        announce_segment(self._context, segment)
        self._context.meter.count_tokens(segment.num_tokens)
        self._context.announce_file(path, "shard")


def announce_segment(context: WorkerContext, segment: Segment) -> None:
    """Tell the control plane's ledger of a sealed segment; once more changes nothing."""
    context.emit(
        SegmentSealed,
        index=segment.index,
        num_samples=segment.num_samples,
        num_tokens=segment.num_tokens,
        num_supervised_tokens=segment.num_supervised_tokens,
        sha256=segment.sha256,
        path=f"dataset/{segment.file}",
    )
