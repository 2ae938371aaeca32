"""A data set of an earlier run as the input of training, judged again by this run's gates.

Samples that the gates reject are left out; shards are only read. The text of the answers is not in
the shards, so the gates that read text do not apply.
"""

from __future__ import annotations

from pathlib import Path

from services.data.candidates import shard_batches
from services.data.dataset import DatasetInfo, read_dataset
from services.data.shards import ShardReader
from shared.gates import Gatekeeper
from workers.batcher.store import SampleStore


def open_existing(folder: Path, *, tokenizer_sha256: str) -> DatasetInfo:
    """DataError when the folder is no data set, or was made with another tokenizer."""
    info = read_dataset(folder)
    info.check_tokenizer(tokenizer_sha256)
    return info


def judge_existing(folder: Path, info: DatasetInfo, keeper: Gatekeeper, store: SampleStore) -> None:
    """Judge every sample in order and add the accepted ones of each shard to `store`.

    IntegrityError names a shard that is not what dataset.json says.
    """
    seq = 0
    for segment in info.segments:
        path = folder / segment.file
        reader = ShardReader(path, num_bytes=segment.num_bytes, sha256=segment.sha256)
        judged = [one for batch in shard_batches(reader, seq) for one in keeper.judge_batch(batch)]
        seq += len(judged)
        rows = [row for row, judgement in enumerate(judged) if judgement.accepted]
        store.add(path, segment.num_bytes, rows)
