import pytest

from services.data.shards import Sample, write_shard
from shared.errors import IntegrityError
from workers.batcher.store import SampleStore


def shard(path, first, count):
    samples = [
        Sample(seq=n, prompt_sha256="", input_ids=[n] * (n + 1), loss_mask=[0] + [1] * n)
        for n in range(first, first + count)
    ]
    return path, write_shard(path, samples, first)[1]


@pytest.fixture
def store(tmp_path):
    store = SampleStore()
    assert store.add(*shard(tmp_path / "a", 0, 3)) == [1, 2, 3]
    assert store.add(*shard(tmp_path / "b", 3, 3), rows=[]) == []
    assert store.add(*shard(tmp_path / "c", 6, 4), rows=[1, 3]) == [8, 10]
    return store


def test_sample_ids_count_the_chosen_rows(store):
    ids, mask = store.tokens([4, 0, 3])
    assert ids.tolist() == [9] * 10 + [0] + [7] * 8
    assert mask.tolist() == [0] + [1] * 9 + [0] + [0] + [1] * 7
    assert store.num_samples == 5 and store.num_segments == 3
    assert [store.lengths(segment) for segment in range(3)] == [[1, 2, 3], [], [8, 10]]


def test_many_shards_are_not_all_open_and_all_readable(tmp_path):
    store = SampleStore()
    for n in range(70):
        store.add(*shard(tmp_path / str(n), n, 1))
    assert [store.tokens([n])[0][0] for n in (0, 69, 35, 0)] == [0, 69, 35, 0]


def test_a_shard_that_changed_is_noticed(tmp_path):
    path, num_bytes = shard(tmp_path / "a", 0, 3)
    with pytest.raises(IntegrityError, match="has"):
        SampleStore().add(path, num_bytes + 1)
