"""The batch plan: the order of training as a pure function of sealed segments, seed and epoch.

    segments (lengths of their samples) + PlanRules -> micro-batches 0, 1, 2, ... -> steps

Epoch 0 goes segment by segment, so that its beginning is known while later segments are still being
generated; every later epoch permutes the whole data set. Within a segment, or the data set:

    permute -> sort into length buckets (order inside a bucket stays random) -> cut into
    micro-batches -> permute the micro-batches

A step is `micro_batches_per_step` consecutive micro-batches of one epoch; an epoch's last step may
be shorter.

Invariants: each sample occurs exactly once in an epoch. What `num_final` counts never changes when
segments are added. Random order comes from a hash written out here, so it is the same on every
machine and with every library version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_PAD_TOKENS = 16
_Ids = NDArray[np.int64]


@dataclass(frozen=True)
class PlanRules:
    """What of the configuration the plan depends on.

    `expected_samples` is the forecast of the data set's size from the number of prompts; it fixes
    `steps_total` during epoch 0, whatever passes the gates in the end. None: the data set is known
    as a whole from the start.
    """

    seed: int
    micro_batch_size: int
    micro_batches_per_step: int
    num_length_buckets: int
    num_epochs: int
    segment_samples: int
    expected_samples: int | None
    max_steps: int | None = None


@dataclass(frozen=True)
class PlannedMicroBatch:
    """One micro-batch; `sample_ids` number the accepted samples in the order of the log."""

    micro_batch_id: int
    epoch: int
    step: int  # counted from 0 over the whole run
    index_in_step: int
    num_in_step: int
    steps_total: int
    last: bool
    sample_ids: tuple[int, ...]
    lengths: tuple[int, ...]
    padded_length: int


@dataclass
class BatchPlan:
    """The plan over the segments sealed so far; grows with `add_segment`, ends with `complete`."""

    rules: PlanRules
    complete: bool = False
    _lengths: list[_Ids] = field(default_factory=list)
    _first_epoch: list[tuple[int, ...]] = field(default_factory=list)

    def add_segment(self, lengths: list[int]) -> None:
        """Append a sealed segment: tokens of each of its samples, in order."""
        assert not self.complete, "a complete data set takes no further segment"
        first_id = self.num_samples
        array = np.asarray(lengths, dtype=np.int64)
        order_seed = mix(self.rules.seed, 0, len(self._lengths))
        groups = order_samples(array, order_seed, self.rules)
        self._first_epoch.extend(tuple(int(i) + first_id for i in group) for group in groups)
        self._lengths.append(array)

    def mark_complete(self) -> None:
        """No segment will follow."""
        self.complete = True

    @property
    def num_samples(self) -> int:
        return sum(len(one) for one in self._lengths)

    @property
    def num_segments(self) -> int:
        return len(self._lengths)

    @property
    def num_final(self) -> int:
        """Micro-batches 0 .. num_final - 1 are fixed and may be dispatched.

        In a growing data set only whole steps of epoch 0 are; with a single epoch the newest whole
        step waits too, since it may turn out to be the last one.
        """
        rules = self.rules
        if self.complete:
            return self.num_micro_batches
        known = len(self._first_epoch) - (1 if rules.num_epochs == 1 else 0)
        steps = max(known, 0) // rules.micro_batches_per_step
        if rules.max_steps is not None:
            steps = min(steps, rules.max_steps)
        return steps * rules.micro_batches_per_step

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of the whole plan; only of a complete data set."""
        assert self.complete, "the size of the plan is known only once the data set is complete"
        rules = self.rules
        first, later = len(self._first_epoch), _ceil(self.num_samples, rules.micro_batch_size)
        total = first + later * (rules.num_epochs - 1)
        if rules.max_steps is None:
            return total
        epoch_steps = [_ceil(first, rules.micro_batches_per_step)]
        epoch_steps += [_ceil(later, rules.micro_batches_per_step)] * (rules.num_epochs - 1)
        left, count = rules.max_steps, 0
        for steps, in_epoch in zip(
            epoch_steps, [first] + [later] * (rules.num_epochs - 1), strict=True
        ):
            count += min(in_epoch, left * rules.micro_batches_per_step)
            left -= min(steps, left)
        return count

    def steps_total(self, epoch: int) -> int:
        """Steps of the run as seen in `epoch`: a forecast in epoch 0, exact afterwards."""
        rules = self.rules
        if epoch == 0 and rules.expected_samples is not None:
            first, samples = _forecast(rules, rules.expected_samples), rules.expected_samples
        else:
            assert self.complete, "only a complete data set has an exact number of steps"
            first, samples = len(self._first_epoch), self.num_samples
        per_step = rules.micro_batches_per_step
        later = _ceil(_ceil(samples, rules.micro_batch_size), per_step)
        total = _ceil(first, per_step) + later * (rules.num_epochs - 1)
        return max(1, total if rules.max_steps is None else min(total, rules.max_steps))

    def micro_batch(self, micro_batch_id: int) -> PlannedMicroBatch:
        """The micro-batch with this id, which must be below `num_final`."""
        assert 0 <= micro_batch_id < self.num_final, "this micro-batch is not fixed yet"
        rules, per_step = self.rules, self.rules.micro_batches_per_step
        first = len(self._first_epoch)
        later = _ceil(self.num_samples, rules.micro_batch_size)
        if micro_batch_id < first or not self.complete:
            epoch, at, in_epoch, steps_before = 0, micro_batch_id, first, 0
            sample_ids = self._first_epoch[at]
        else:
            epoch, at = divmod(micro_batch_id - first, later)
            epoch, in_epoch = epoch + 1, later
            steps_before = _ceil(first, per_step) + (epoch - 1) * _ceil(later, per_step)
            sample_ids = self._later_epoch(epoch)[at]
        step, index = divmod(at, per_step)
        lengths = tuple(self._length_of(one) for one in sample_ids)
        return PlannedMicroBatch(
            micro_batch_id=micro_batch_id,
            epoch=epoch,
            step=steps_before + step,
            index_in_step=index,
            num_in_step=min(per_step, in_epoch - step * per_step) if self.complete else per_step,
            steps_total=self.steps_total(epoch),
            last=self._is_last(micro_batch_id),
            sample_ids=sample_ids,
            lengths=lengths,
            padded_length=_ceil(max(lengths), _PAD_TOKENS) * _PAD_TOKENS,
        )

    def _is_last(self, micro_batch_id: int) -> bool:
        if self.complete:
            return micro_batch_id == self.num_micro_batches - 1
        rules = self.rules
        if rules.max_steps is None:
            return False
        return micro_batch_id == rules.max_steps * rules.micro_batches_per_step - 1

    def _length_of(self, sample_id: int) -> int:
        return int(self._all_lengths[sample_id])

    @property
    def _all_lengths(self) -> _Ids:
        cached = getattr(self, "_joined", None)
        if cached is None or len(cached) != self.num_samples:
            cached = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int64)
            self._joined = cached
        return cached

    def _later_epoch(self, epoch: int) -> list[tuple[int, ...]]:
        cached = getattr(self, "_epoch_order", None)
        if cached is None or cached[0] != epoch:
            order = order_samples(self._all_lengths, mix(self.rules.seed, epoch, 0), self.rules)
            cached = (epoch, [tuple(int(one) for one in group) for group in order])
            self._epoch_order = cached
        return cached[1]


def order_samples(lengths: _Ids, seed: int, rules: PlanRules) -> list[_Ids]:
    """Cut samples 0 .. len(lengths) - 1 into micro-batches in random order, alike in length."""
    count = len(lengths)
    if count == 0:
        return []
    order = permutation(count, mix(seed, 1))
    rank = np.empty(count, dtype=np.int64)
    rank[np.lexsort((np.arange(count), lengths))] = np.arange(count)
    bucket = rank * min(rules.num_length_buckets, count) // count
    order = order[np.argsort(bucket[order], kind="stable")]
    size = rules.micro_batch_size
    groups = [order[at : at + size] for at in range(0, count, size)]
    return [groups[int(at)] for at in permutation(len(groups), mix(seed, 2))]


def permutation(count: int, seed: int) -> _Ids:
    """0 .. count - 1 in an order that depends on `seed` and `count` alone."""
    keys = _splitmix(np.arange(count, dtype=np.uint64) + np.uint64(_splitmix_int(seed)))
    return np.argsort(keys, kind="stable").astype(np.int64)


@lru_cache(maxsize=1024)
def mix(*parts: int) -> int:
    """One 64-bit seed out of several numbers, order included."""
    state = 0
    for part in parts:
        state = _splitmix_int(state ^ (part & _MASK))
    return state


_MASK = 2**64 - 1


def _splitmix_int(value: int) -> int:
    """splitmix64's step and finaliser (Steele, Lea, Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _splitmix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def _forecast(rules: PlanRules, expected_samples: int) -> int:
    """Micro-batches of epoch 0 if every expected sample passes the gates."""
    whole, rest = divmod(expected_samples, rules.segment_samples)
    size = rules.micro_batch_size
    return whole * _ceil(rules.segment_samples, size) + _ceil(rest, size)


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
