"""Parquet, Arrow and Feather, and folders that `datasets` writes."""

import gzip
import json

import datasets
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from services.data.raw import Unreadable, iter_raw_rows
from shared.errors import DataError

CALL = {"function": {"name": "add", "arguments": {"a": 1}}}
ROWS = [
    {
        "id": at,
        "messages": [
            {"role": "user", "content": f"question {at}"},
            {"role": "assistant", "content": "x", **({"tool_calls": [CALL]} if at % 2 else {})},
        ],
    }
    for at in range(2500)
]


def write_stream(table, path):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, max_chunksize=700)


def write_file(table, path):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table, max_chunksize=700)


WRITERS = {
    "p.parquet": lambda table, path: pq.write_table(table, path, row_group_size=900),
    "p.arrow": write_stream,
    "q.arrow": write_file,
    "p.feather": lambda table, path: feather.write_feather(table, str(path)),
}


def read(path, format_="auto"):
    rows = list(iter_raw_rows(str(path), format_))
    good = [row for row in rows if not isinstance(row, Unreadable)]
    return good, [row for row in rows if isinstance(row, Unreadable)]


@pytest.fixture(scope="module")
def table():
    return pa.Table.from_pylist(ROWS)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_tables_give_their_rows_without_the_nulls_of_structs(tmp_path, table, name, packed):
    path = tmp_path / name
    WRITERS[name](table, path)
    if packed:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
        path = tmp_path / f"{name}.gz"
    good, bad = read(path)
    assert [row.content for row in good] == ROWS and bad == []
    assert [row.place.number for row in good] == list(range(1, 2501))
    assert str(good[4].place) == "row 5"


@pytest.mark.parametrize("name", WRITERS)
def test_a_cut_table_is_an_error(tmp_path, table, name):
    path = tmp_path / name
    WRITERS[name](table, path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    if name == "p.arrow":  # a stream gives what is whole
        good, (last,) = read(path)
        assert [row.content for row in good] == ROWS[: len(good)] and len(good) >= 700
        assert last.place.number == len(good) + 1 and "damaged from here on" in last.problem
        return
    with pytest.raises(DataError, match=rf"{name} cannot be read as (Parquet|Arrow)"):
        read(path)


def test_a_packed_table_that_is_cut_is_an_error(tmp_path, table):
    pq.write_table(table, tmp_path / "p.parquet")
    data = gzip.compress((tmp_path / "p.parquet").read_bytes(), 1)
    (tmp_path / "p.parquet.gz").write_bytes(data[:-100])
    with pytest.raises(
        DataError, match=r"gzip stream is cut off .* a table cannot be read without"
    ):
        read(tmp_path / "p.parquet.gz")


def test_a_stream_without_its_end_mark_may_be_cut_between_batches(tmp_path, table):
    write_stream(table, tmp_path / "p.arrow")
    data = (tmp_path / "p.arrow").read_bytes()
    (tmp_path / "p.arrow").write_bytes(data[:-8])
    good, (last,) = read(tmp_path / "p.arrow")
    assert len(good) == 2500 and "no end mark" in last.problem


def test_a_damaged_page_names_the_row(tmp_path):
    values = {"prompt": [f"{at:05d}" * 40 for at in range(2000)]}
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table(values), path, row_group_size=1000, compression="zstd")
    data = bytearray(path.read_bytes())
    with pq.ParquetFile(path) as file:
        start = file.metadata.row_group(1).column(0).dictionary_page_offset
    data[start : start + 200] = bytes(200)
    path.write_bytes(data)
    good, (last,) = read(path)
    assert 0 < len(good) <= 1000 and last.place.number == len(good) + 1


def test_saved_data_sets_are_read_in_the_order_they_list(tmp_path):
    data = datasets.Dataset.from_list(ROWS[:60])
    data.save_to_disk(tmp_path / "one", num_shards=3)
    good, bad = read(tmp_path / "one")
    assert [row.content for row in good] == ROWS[:60] and bad == []
    assert [row.content for row in read(tmp_path / "one", "datasets")[0]] == ROWS[:60]
    state = json.loads((tmp_path / "one" / "state.json").read_text())
    state["_data_files"].reverse()
    (tmp_path / "one" / "state.json").write_text(json.dumps(state))
    assert read(tmp_path / "one")[0][0].content["id"] == 40
    (tmp_path / "one" / state["_data_files"][1]["filename"]).unlink()
    with pytest.raises(DataError, match=r"lacks the file data-00001-of-00003\.arrow"):
        read(tmp_path / "one")


def test_of_a_saved_dictionary_the_training_split_is_read(tmp_path):
    half = datasets.Dataset.from_list(ROWS[:6]).train_test_split(2, shuffle=False)
    half.save_to_disk(tmp_path / "both")
    assert [row.content["id"] for row in read(tmp_path / "both")[0]] == [0, 1, 2, 3]
    assert [row.content["id"] for row in read(tmp_path / "both" / "test")[0]] == [4, 5]
    datasets.DatasetDict({"a": half["train"], "b": half["test"]}).save_to_disk(tmp_path / "other")
    with pytest.raises(DataError, match="splits a, b and no 'train': name the folder"):
        read(tmp_path / "other")


def test_a_forced_format_must_fit(tmp_path, table):
    pq.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(DataError, match=r"is parquet by its content, but data\.format is 'jsonl'"):
        read(tmp_path / "p.parquet", "jsonl")
    with pytest.raises(DataError, match="is a file: name a folder"):
        read(tmp_path / "p.parquet", "datasets")
    with pytest.raises(DataError, match="no folder that datasets' save_to_disk wrote"):
        read(tmp_path, "datasets")
