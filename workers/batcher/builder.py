"""The growing data set: completions in log order to sealed segments.

    completion -> gates -> accepted: pending segment -> shard, dataset.json
                        -> rejected: quarantine

Sealing order: quarantine lines, shard, dataset.json; each durable before the next, so dataset.json
never names what is not there. Invariants: the content of segment k depends on the log alone; a
sealed segment never changes. A restarted builder judges the log again from its beginning, which
rebuilds the gates' state, and writes only what lies behind the last sealed segment.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from services.data.dataset import (
    FILE_NAME,
    DatasetInfo,
    Fingerprint,
    Segment,
    read_dataset,
    write_dataset,
)
from services.data.shards import Sample, write_shard
from shared.errors import DataError, IntegrityError
from shared.gates import CandidateBatch, Gatekeeper, Judgement
from shared.gates.window import Verdict
from shared.layout import RunFolder
from shared.messages import Completion
from workers.batcher.quarantine import Quarantine
from workers.batcher.samples import candidate_of, sample_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Taken:
    """How many completions were judged, and the segments they sealed."""

    num_taken: int
    sealed: list[Segment]


class DatasetBuilder:
    """Gates, pending segment and dataset.json of one run. Not thread-safe."""

    def __init__(self, folder: RunFolder, info: DatasetInfo, keeper: Gatekeeper) -> None:
        self.info = info
        self.keeper = keeper
        self.next_seq = 0
        self._folder = folder
        self._num_sealed_seen = 0
        self._pending: list[Sample] = []
        sizes = info.segments[-1].quarantine_bytes if info.segments else {}
        self._quarantine = Quarantine(folder.quarantine, sizes)

    @property
    def num_prompts(self) -> int:
        return self.info.num_prompts

    @property
    def caught_up(self) -> bool:
        """Whether everything behind the last sealed segment has been judged again."""
        return self.next_seq >= self.info.next_seq

    @property
    def num_accepted(self) -> int:
        return self.keeper.ledger.num_accepted

    @property
    def num_rejected(self) -> int:
        return self.keeper.ledger.num_seen - self.keeper.ledger.num_accepted

    def verdict(self, *, final: bool = False) -> Verdict:
        """What the gates say of everything judged so far."""
        return self.keeper.verdict(final=final)

    def open_gates(self) -> None:
        """The window has passed, or a person has overridden it; recorded with the next seal."""
        self.info = msgspec.structs.replace(self.info, gates_open=True)

    def take(self, completion: Completion) -> Segment | None:
        """Judge the next completion of the log; the segment when it sealed one."""
        sealed = self.take_some([completion]).sealed
        return sealed[0] if sealed else None

    def take_some(
        self, completions: Sequence[Completion], *, stop_when_blocked: bool = False
    ) -> Taken:
        """Judge the next completions of the log, up to the first at which the gates block.

        With `stop_when_blocked` the rest is left alone, as if it had not come. IntegrityError when
        the log has a gap, or does not lead to the segments sealed before.
        """
        for seq, completion in enumerate(completions, self.next_seq):
            if completion.seq != seq:
                raise IntegrityError(
                    f"the completions log sent seq {completion.seq}, expected {seq}"
                )
        samples = [sample_of(one, self.info.fingerprint.max_length) for one in completions]
        sealed: list[Segment] = []

        def enter(at: int, judgement: Judgement) -> bool:
            segment = self._enter(completions[at], samples[at], judgement)
            if segment is not None:
                sealed.append(segment)
            return stop_when_blocked and self.verdict().blocked

        batch = CandidateBatch.of(list(map(candidate_of, completions, samples)))
        return Taken(len(self.keeper.judge_batch(batch, enter)), sealed)

    def _enter(
        self, completion: Completion, sample: Sample, judgement: Judgement
    ) -> Segment | None:
        was_sealed = not self.caught_up
        self.next_seq += 1
        if was_sealed:
            self._check_against_sealed()
            return None
        if not judgement.accepted:
            self._quarantine.add(completion, judgement)
            return None
        self._pending.append(sample)
        if len(self._pending) < self.info.fingerprint.segment_samples:
            return None
        return self._seal()

    def finish(self) -> Segment | None:
        """The log has ended: seal what is left, and mark the data set complete.

        DataError when not a single sample was accepted.
        """
        if not self.info.segments and not self._pending:
            raise DataError(
                f"none of {self.next_seq} completions passed the quality gates: there is nothing "
                f"to train on. Rejected: {self._rejected_counts()}; quarantine/ has them all"
            )
        segment = self._seal(complete=True) if self._pending else None
        if segment is None:
            self._quarantine.flush()
            self._write(complete=True, segments=self.info.segments)
        return segment

    def files(self) -> list[tuple[Path, str]]:
        """Files besides the shards that are final once the data set is complete."""
        found: list[tuple[Path, str]] = [(self._folder.dataset / FILE_NAME, "metadata")]
        found += [(path, "quarantine") for path in self._quarantine.files]
        return found

    def _seal(self, *, complete: bool = False) -> Segment:
        index = len(self.info.segments)
        path = self._folder.shard(index)
        self._quarantine.flush()
        sha256, num_bytes = write_shard(path, self._pending, self.info.num_samples)
        segment = Segment(
            index=index,
            file=path.name,
            sha256=sha256,
            num_bytes=num_bytes,
            num_samples=len(self._pending),
            num_tokens=sum(len(one.input_ids) for one in self._pending),
            num_supervised_tokens=sum(sum(one.loss_mask) for one in self._pending),
            next_seq=self.next_seq,
            quarantine_bytes=dict(self._quarantine.sizes),
        )
        self._write(complete=complete, segments=[*self.info.segments, segment])
        self._pending = []
        return segment

    def _write(self, *, complete: bool, segments: list[Segment]) -> None:
        info = msgspec.structs.replace(
            self.info, segments=segments, complete=complete, report=self.keeper.report()
        )
        write_dataset(self._folder.dataset, info)
        self.info = info

    def _check_against_sealed(self) -> None:
        """At each segment's end, the samples accepted again must be as many as were sealed."""
        done = self._num_sealed_seen
        if done < len(self.info.segments) and self.info.segments[done].next_seq == self.next_seq:
            self._num_sealed_seen += 1
            sealed = sum(one.num_samples for one in self.info.segments[: done + 1])
            if self.num_accepted != sealed:
                raise IntegrityError(
                    f"the completions log up to seq {self.next_seq} gives {self.num_accepted} "
                    f"samples, but {sealed} were sealed: the log, the gates' code or a library "
                    "has changed. Train on the sealed data set (data.dataset), or start a new run"
                )

    def _rejected_counts(self) -> str:
        counts = self.keeper.ledger.rejected.most_common()
        return ", ".join(f"{count} {reason.value}" for reason, count in counts) or "none"


def load_info(folder: RunFolder, fingerprint: Fingerprint) -> DatasetInfo | None:
    """What an earlier incarnation sealed; None when there is nothing.

    DataError when it was made under another fingerprint, with the fields that differ.
    """
    if not folder.dataset_json.is_file():
        return None
    # A shard that is missing is as good as a damaged one: both are made again from the log.
    info = read_dataset(folder.dataset, need_shards=False)
    if info.fingerprint == fingerprint:
        return info
    old: dict[str, Any] = msgspec.to_builtins(info.fingerprint)
    new: dict[str, Any] = msgspec.to_builtins(fingerprint)
    changed = ", ".join(sorted(key for key in new if old.get(key) != new[key]))
    raise DataError(
        f"{folder.dataset_json} was made under another configuration ({changed} changed); its "
        "samples cannot be extended. Start a new run"
    )
