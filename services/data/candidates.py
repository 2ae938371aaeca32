"""Stored samples as candidates for the gates, in columns and in batches.

    completions log, Arrow shard -> CandidateBatch ... -> Gatekeeper.judge_batch

`first_seq` is the number of the first sample, counted over everything that is judged together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from services.data.shards import ShardReader
from shared.errors import DataError
from shared.gates import CandidateBatch
from shared.gates.ngrams import offsets_of
from shared.messages import Completion

BATCH_SAMPLES = 1024


def shard_batches(reader: ShardReader, first_seq: int) -> Iterator[CandidateBatch]:
    """All samples of a shard. Its answers have no text, so the gates of text do not apply."""
    for first in range(0, len(reader), BATCH_SAMPLES):
        last = min(first + BATCH_SAMPLES, len(reader))
        ids, supervised, offsets = reader.columns(first, last)
        yield CandidateBatch.of_tokens(
            seqs=range(first_seq + first, first_seq + last),
            ids=ids,
            supervised=supervised,
            offsets=offsets,
            prompt_sha256=reader.texts("prompt_sha256", first, last),
            sources=[f"{reader.path}, row {row + 1}" for row in range(first, last)],
        )


def completion_batches(
    path: Path, first_seq: int, thinking: bool | None
) -> Iterator[CandidateBatch]:
    """Lines of a completions log; `thinking` overrides what the completions say of their prompts.

    DataError with file and line for a line that is no completion.
    """
    decode = msgspec.json.Decoder(Completion).decode
    with path.open("rb") as file:
        rows = ((number, raw) for number, raw in enumerate(file, 1) if not raw.isspace())
        while chunk := list(itertools.islice(rows, BATCH_SAMPLES)):
            items: list[Completion] = []
            for number, raw in chunk:
                try:
                    items.append(decode(raw))
                except msgspec.DecodeError as error:
                    raise DataError(
                        f"{path}, line {number}: not a completion of the log ({error}); expected "
                        "the lines that a generator writes"
                    ) from error
            sources = [f"{path}, line {number}" for number, _ in chunk]
            yield _of_completions(items, sources, first_seq, thinking)
            first_seq += len(items)


def _of_completions(
    items: Sequence[Completion], sources: Sequence[str], first_seq: int, thinking: bool | None
) -> CandidateBatch:
    prompts = np.array([len(one.prompt_ids) for one in items], np.int64)
    outputs = np.array([len(one.output_ids) for one in items], np.int64)
    parts = itertools.chain.from_iterable((one.prompt_ids, one.output_ids) for one in items)
    ids = itertools.chain.from_iterable(parts)
    offsets = offsets_of(prompts + outputs)
    roles = np.tile(np.array([False, True]), len(items))
    return CandidateBatch.of_tokens(
        seqs=range(first_seq, first_seq + len(items)),
        ids=np.fromiter(ids, np.int64, int(offsets[-1])),
        supervised=np.repeat(roles, np.stack([prompts, outputs], axis=1).ravel()),
        offsets=offsets,
        texts=[one.text for one in items],
        prompt_sha256=[one.prompt_sha256 for one in items],
        finish_reasons=[one.finish_reason for one in items],
        thinking=[one.thinking if thinking is None else thinking for one in items],
        sources=sources,
    )
