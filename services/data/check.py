"""Judge whole files by the gates: completions logs, shards and rows of conversations.

    files -> reader thread: batches of candidates -> [bounded queue] -> Gatekeeper

The reader thread reads, decodes and hashes (or tokenises) while the caller judges; much of both is
compiled code that lets go of Python's lock. Judgements come in file order whatever the timing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from services.data.candidates import BATCH_SAMPLES, completion_batches, shard_batches
from services.data.check_rows import ConversationBatcher, messages_of_line
from services.data.shards import ShardReader
from shared.errors import DataError
from shared.gates import CandidateBatch, Gatekeeper

_AHEAD = 2  # batches made before they are judged


def check_files(
    paths: Iterable[Path],
    keeper: Gatekeeper,
    batcher: ConversationBatcher,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Judge everything in the files, in order; the keeper then has the report.

    `progress` is told the source of the last sample of each batch. DataError names file, line and
    cause of what cannot be read, and files that cannot be compared with each other.
    """
    unit: str | None = None
    for batch in _prefetched(candidate_batches(paths, batcher)):
        if unit is not None and batch.unit != unit:
            raise DataError(
                "token ids and conversations cannot be compared with each other: check them one "
                "after the other, or name the tokenizer with --target"
            )
        unit = batch.unit
        keeper.judge_batch(batch)
        if progress is not None and batch.sources:
            progress(batch.sources[-1])


def candidate_batches(
    paths: Iterable[Path], batcher: ConversationBatcher
) -> Iterator[CandidateBatch]:
    """Batches of all files; samples are numbered from 0 over all of them."""
    seq = 0
    for path in paths:
        for batch in _file_batches(path, seq, batcher):
            seq += len(batch)
            yield batch


def expand(paths: Iterable[Path]) -> Iterator[Path]:
    """Files as they are, folders as the files in them that can be checked."""
    for path in paths:
        if path.is_dir():
            logs = sorted(path.glob("batch_*.jsonl")) or sorted(path.glob("*.jsonl"))
            found = [*logs, *sorted(path.glob("*.arrow"))]
            if not found:
                raise DataError(f"{path} holds neither *.jsonl nor *.arrow files")
            yield from found
        else:
            yield path


def _file_batches(
    path: Path, first_seq: int, batcher: ConversationBatcher
) -> Iterator[CandidateBatch]:
    if path.suffix == ".arrow":
        yield from shard_batches(ShardReader(path), first_seq)
        return
    if path.suffix != ".jsonl":
        raise DataError(
            f"{path}: data check reads completions and conversations (.jsonl) and shards (.arrow)"
        )
    with path.open("rb") as file:
        lines = ((number, raw) for number, raw in enumerate(file, 1) if not raw.isspace())
        first = next(lines, None)
        if first is None:
            return
        lines = itertools.chain([first], lines)
        if _is_completion(first[1]):
            yield from completion_batches(lines, path, first_seq, batcher.thinking)
        else:
            yield from _conversation_batches(lines, path, first_seq, batcher)


def _conversation_batches(
    lines: Iterator[tuple[int, bytes]], path: Path, first_seq: int, batcher: ConversationBatcher
) -> Iterator[CandidateBatch]:
    while chunk := list(itertools.islice(lines, BATCH_SAMPLES)):
        sources = [f"{path.name}, line {number}" for number, _ in chunk]
        rows = [
            messages_of_line(raw, source) for (_, raw), source in zip(chunk, sources, strict=True)
        ]
        yield batcher.batch(rows, range(first_seq, first_seq + len(rows)), sources)
        first_seq += len(rows)


def _is_completion(raw: bytes) -> bool:
    try:
        tree = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return isinstance(tree, dict) and "output_ids" in tree


def _prefetched(batches: Iterator[CandidateBatch]) -> Iterator[CandidateBatch]:
    """The same batches, made in a thread up to `_AHEAD` before they are asked for."""
    with ThreadPoolExecutor(1, thread_name_prefix="data-check") as pool:
        waiting = [pool.submit(next, batches, None) for _ in range(_AHEAD)]
        while (batch := waiting.pop(0).result()) is not None:
            waiting.append(pool.submit(next, batches, None))
            yield batch
