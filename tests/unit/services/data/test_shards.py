import datasets
import msgspec
import pyarrow as pa
import pytest

from services.data.dataset import (
    DatasetInfo,
    Fingerprint,
    Segment,
    read_dataset,
    write_dataset,
)
from services.data.shards import Sample, ShardReader, shard_bytes, write_shard
from shared.errors import DataError, IntegrityError

SAMPLES = [
    Sample(seq=4, prompt_sha256="aa", input_ids=[1, 2, 3], loss_mask=[0, 1, 1]),
    Sample(seq=7, prompt_sha256="bb", input_ids=[4, 5], loss_mask=[0, 1]),
]


def test_a_shard_gives_back_its_samples(tmp_path):
    path = tmp_path / "shard_00000.arrow"
    sha256, num_bytes = write_shard(path, SAMPLES, first_sample_id=10)
    assert path.stat().st_size == num_bytes and len(sha256) == 64
    assert shard_bytes(SAMPLES, 10) == path.read_bytes()
    reader = ShardReader(path, num_bytes=num_bytes)
    assert reader.lengths() == [3, 2]
    assert [reader.sample(row) for row in range(len(reader))] == SAMPLES
    ids, mask = reader.tokens(1)
    assert (ids.dtype, ids.tolist(), mask.dtype, mask.tolist()) == (
        "int64",
        [4, 5],
        "uint8",
        [0, 1],
    )


def test_hugging_face_datasets_loads_a_shard(tmp_path):
    path = tmp_path / "shard_00000.arrow"
    write_shard(path, SAMPLES, first_sample_id=10)
    mapped = datasets.Dataset.from_file(str(path))
    assert mapped[1] == {
        "input_ids": [4, 5],
        "loss_mask": [0, 1],
        "length": 2,
        "sample_id": 11,
        "prompt_sha256": "bb",
        "seq": 7,
    }
    loaded = datasets.load_dataset(
        "arrow", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded["input_ids"][:] == [[1, 2, 3], [4, 5]]


def test_files_that_are_no_shards_are_named(tmp_path):
    path = tmp_path / "shard_00000.arrow"
    with pytest.raises(DataError, match="does not exist"):
        ShardReader(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="is not an Arrow file"):
        ShardReader(path)
    table = pa.table({"text": ["a"]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="no column input_ids, loss_mask; it has text"):
        ShardReader(path)
    write_shard(path, SAMPLES, 0)
    with pytest.raises(IntegrityError, match=r"dataset\.json says 5"):
        ShardReader(path, num_bytes=5)


def test_a_shard_of_another_tool_with_other_integer_types_is_read(tmp_path):
    table = pa.table(
        {
            "input_ids": pa.array([[1, 2], [3]], pa.large_list(pa.int64())),
            "loss_mask": pa.array([[True, False], [True]], pa.list_(pa.bool_())),
        }
    )
    path = tmp_path / "other.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    reader = ShardReader(path)
    assert reader.sample(0) == Sample(-1, "", [1, 2], [1, 0])


def info_of(folder):
    sha256, num_bytes = write_shard(folder / "shard_00000.arrow", SAMPLES, 0)
    segment = Segment(0, "shard_00000.arrow", sha256, num_bytes, 2, 5, 3, 8, {"empty": 12})
    fingerprint = Fingerprint("t" * 64, "c" * 64, 3, 512, 64, 7, {"min_supervised_tokens": 8})
    return DatasetInfo(fingerprint, [segment], complete=True, num_prompts=9)


def test_dataset_json_round_trip_and_tokenizer_check(tmp_path):
    info = info_of(tmp_path)
    write_dataset(tmp_path, info)
    found = read_dataset(tmp_path)
    assert found == info
    assert (found.num_samples, found.num_tokens, found.next_seq) == (2, 5, 8)
    found.check_tokenizer("t" * 64)
    with pytest.raises(DataError, match="another tokenizer"):
        found.check_tokenizer("u" * 64)


def test_unusable_dataset_folders_are_named(tmp_path):
    with pytest.raises(DataError, match=r"does not exist; check data\.dataset"):
        read_dataset(tmp_path / "none")
    with pytest.raises(DataError, match=r"has no dataset\.json"):
        read_dataset(tmp_path)
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(DataError, match="not a data set description"):
        read_dataset(tmp_path)
    info = info_of(tmp_path)
    write_dataset(tmp_path, msgspec.structs.replace(info, segments=[]))
    with pytest.raises(DataError, match="empty"):
        read_dataset(tmp_path)
    write_dataset(tmp_path, info)
    (tmp_path / "shard_00000.arrow").unlink()
    with pytest.raises(DataError, match=r"lacks the shards shard_00000\.arrow"):
        read_dataset(tmp_path)
