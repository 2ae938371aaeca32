"""Prompts are never held in memory, whatever their format."""

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.memory import measure_in_process
from tests.helpers.mesh_contexts import TINY

NUM_ROWS = 20_000
LIMIT_BYTES = 64 * 2**20  # beyond what the process has before it reads; the texts are 74 MB


@pytest.fixture(scope="module")
def rows():
    rng = random.Random(0)
    filler = [rng.randbytes(900).hex() for _ in range(50)]
    return [{"prompt": f"{at} {filler[at % 50]}", "note": filler[at % 7]} for at in range(NUM_ROWS)]


def write(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=NUM_ROWS)
    elif path.suffix == ".json":
        with path.open("w") as file:
            file.write("[" + ",\n".join(map(json.dumps, rows)) + "]")
    else:
        with gzip.open(path, "wt", 1) as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "work"),
    [("p.json", "split"), ("p.jsonl.gz", "count"), ("p.parquet", "split"), ("p.json", "held_out")],
)
def test_memory_does_not_grow_with_the_prompts(tmp_path, rows, name, work):
    write(tmp_path / name, rows)
    config = {**TINY, "data": {"prompts": str(tmp_path / name), "max_held_out": 10}}
    (tmp_path / "config").write_text(json.dumps(config))
    found = measure_in_process(tmp_path / "config", work)
    assert found["peak"] - found["before"] < LIMIT_BYTES, found
    assert found["peak"] < 200 * 2**20
    expected = {"count": NUM_ROWS, "held_out": 10}.get(work)
    if expected is None:
        expected = NUM_ROWS - 10 - len(range(0, NUM_ROWS - 10, 7))
        assert abs(found["result"] - expected) <= 10
    else:
        assert found["result"] == expected
