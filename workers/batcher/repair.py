"""Sealed shards that are no longer what dataset.json says, made again from the completions log.

    shards at the start -> [sums] -> damaged or missing ones
    generator --Completions (from 0)--> gates -> samples of each segment -> shard with the same sum

The content of a segment depends on the log alone, so the log gives the very same bytes. When it
does not (the log is damaged too, or a library writes shards differently), nothing is written and
the run fails with both sums: training never goes on with other data than was sealed.
"""

from __future__ import annotations

import logging

from services.data.dataset import DatasetInfo, Segment
from services.data.shards import Sample, shard_bytes
from services.files import FileSum, check_sum, sha256_bytes, write_file
from services.links import Channel, LinkLimits
from shared.errors import IntegrityError, LinkError
from shared.gates import Gatekeeper
from shared.layout import RunFolder
from shared.messages import Completion, Completions, CompletionsFrom
from shared.states import Role
from workers.batcher.samples import candidate_of, sample_of
from workers.runtime import WorkerContext
from workers.runtime.dialing import dial_peer, next_message

logger = logging.getLogger(__name__)
_CREDIT_MESSAGES = 4


def damaged_shards(folder: RunFolder, info: DatasetInfo) -> dict[int, str]:
    """What is wrong with each sealed shard, by index, that is missing or damaged; blocking."""
    damaged: dict[int, str] = {}
    for segment in info.segments:
        try:
            check_sum(
                folder.shard(segment.index),
                FileSum(segment.num_bytes, segment.sha256),
                folder.dataset_json,
            )
        except IntegrityError as error:
            damaged[segment.index] = str(error)
    return damaged


class ShardRepair:
    """Takes the log from its beginning until every damaged shard is made again."""

    def __init__(
        self, folder: RunFolder, info: DatasetInfo, keeper: Gatekeeper, damaged: dict[int, str]
    ) -> None:
        self.next_seq = 0
        self._folder = folder
        self._max_length = info.fingerprint.max_length
        self._keeper = keeper
        self._damaged = damaged
        self._segments = info.segments[: max(damaged) + 1]
        self._at = 0
        self._first_sample_id = 0
        self._pending: list[Sample] = []

    @property
    def done(self) -> bool:
        return self._at == len(self._segments)

    def take(self, completion: Completion) -> None:
        """The next completion; IntegrityError when the log does not give a shard's recorded sum."""
        if completion.seq != self.next_seq:
            raise IntegrityError(
                f"the completions log sent seq {completion.seq}, expected {self.next_seq}"
            )
        sample = sample_of(completion, self._max_length)
        self.next_seq += 1
        if self._keeper.judge(candidate_of(completion, sample)).accepted:
            self._pending.append(sample)
        segment = self._segments[self._at]
        if self.next_seq == segment.next_seq:
            if segment.index in self._damaged:
                self._write(segment)
            self._first_sample_id += segment.num_samples
            self._pending = []
            self._at += 1

    def log_ended(self) -> None:
        """The log has no more: IntegrityError unless everything is repaired."""
        if not self.done:
            raise self._beyond_repair(self._segments[-1], f"the log ends at seq {self.next_seq}")

    def _write(self, segment: Segment) -> None:
        data = shard_bytes(self._pending, self._first_sample_id)
        found = sha256_bytes(data)
        if found != segment.sha256:
            raise self._beyond_repair(segment, f"it gives a shard with sha256 {found}")
        write_file(self._folder.shard(segment.index), data)
        logger.warning("%s: made again from the completions log", self._damaged[segment.index])

    def _beyond_repair(self, segment: Segment, why: str) -> IntegrityError:
        what = self._damaged[segment.index]
        return IntegrityError(
            f"{what}; the completions log cannot replace it: {why}. Restore the shard from an "
            "export, or start a new run"
        )


async def repair_shards(context: WorkerContext, repair: ShardRepair) -> None:
    """Ask the generator for its log until `repair` is done. IntegrityError, DiskFullError."""
    limits = LinkLimits(_CREDIT_MESSAGES, context.config.links.max_bytes)
    while not repair.done:
        with context.meter.waiting_for(Role.GENERATOR):
            channel = await dial_peer(context, Role.GENERATOR, "completions", limits)
        try:
            await _replay(channel, repair)
        except LinkError as error:
            logger.info("link to the generator ended: %s", error)
        finally:
            await channel.close()


async def _replay(channel: Channel, repair: ShardRepair) -> None:
    await channel.send(CompletionsFrom(repair.next_seq))
    while not repair.done:
        with await next_message(channel) as received:
            message = received.payload
            if not isinstance(message, Completions):
                raise LinkError(
                    f"link 'completions' carries Completions, {type(message).__name__} came"
                )
            for completion in message.items:
                if not repair.done:
                    repair.take(completion)
            if message.final:
                repair.log_ended()
