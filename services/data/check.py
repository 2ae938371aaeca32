"""Judge whole files by the gates: completions logs, shards and rows of conversations.

    files -> rows -> batches of candidates -> Gatekeeper

What a file holds decides how it is read: a JSONL file whose first line has `output_ids` is a
completions log, an Arrow file with `input_ids` is a shard, everything else is rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from services.data.candidates import completion_batches, shard_batches
from services.data.check_rows import ConversationBatcher, UnusableRows, chunks
from services.data.raw import iter_raw_rows
from services.data.shapes import RowShapes
from services.data.shards import ShardReader
from shared.errors import DataError
from shared.gates import CandidateBatch, Gatekeeper


def check_files(
    locations: Iterable[str],
    keeper: Gatekeeper,
    batcher: ConversationBatcher,
    progress: Callable[[str], None] | None = None,
) -> UnusableRows:
    """Judge everything in the files or folders, in order; the keeper then has the report.

    Answers with the rows that could not be judged at all. `progress` is told the source of the
    last sample of each batch. DataError names what is no data, and files that cannot be compared.
    """
    unusable = UnusableRows()
    unit: str | None = None
    for batch in _batches(locations, batcher, unusable):
        if unit is not None and batch.unit != unit:
            raise DataError(
                "token ids and conversations cannot be compared with each other: check them one "
                "after the other, or name the tokenizer with --target"
            )
        unit = batch.unit
        keeper.judge_batch(batch)
        if progress is not None and batch.sources:
            progress(batch.sources[-1])
    return unusable


def _batches(
    locations: Iterable[str], batcher: ConversationBatcher, unusable: UnusableRows
) -> Iterator[CandidateBatch]:
    """Batches of all files; samples are numbered from 0 over all of them."""
    seq = 0
    for location in locations:
        for one in _expanded(location):
            for batch in _file_batches(one, seq, batcher, unusable):
                seq += len(batch)
                yield batch


def _expanded(location: str) -> Iterator[str]:
    """The logs or shards of a local folder that holds them; else the location itself."""
    folder = Path(location)
    logs = sorted(folder.glob("batch_*.jsonl"))
    shards = [one for one in sorted(folder.glob("*.arrow")) if _is_shard(one)]
    yield from [str(one) for one in (*logs, *shards)] or [location]


def _file_batches(
    location: str, first_seq: int, batcher: ConversationBatcher, unusable: UnusableRows
) -> Iterator[CandidateBatch]:
    path = Path(location)
    if _is_shard(path):
        return shard_batches(ShardReader(path), first_seq)
    if _is_log(path):
        return completion_batches(path, first_seq, batcher.thinking)
    return batcher.batches(chunks(iter_raw_rows(location), RowShapes(), unusable), first_seq)


def _is_shard(path: Path) -> bool:
    if path.suffix != ".arrow" or not path.is_file():
        return False
    for opened in (pa.ipc.open_stream, pa.ipc.open_file):
        try:
            with pa.memory_map(str(path)) as source:
                return "input_ids" in opened(source).schema.names
        except pa.ArrowInvalid:
            continue  # the other of Arrow's two formats, or no Arrow at all: its reader says so
    return False


def _is_log(path: Path) -> bool:
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    with path.open("rb") as file:
        first = next((line for line in file if not line.isspace()), b"")
    try:
        tree = msgspec.json.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return isinstance(tree, dict) and "output_ids" in tree
