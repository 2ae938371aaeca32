"""gzip and zstd: told by content, in pieces, cut off, damaged."""

import gzip
import json
import random

import pyarrow as pa
import pytest

from services.data.raw import Unreadable, iter_raw_rows
from shared.errors import DataError


def rows_of(num):
    rng = random.Random(1)
    return [{"prompt": f"{at} " + rng.randbytes(300).hex()} for at in range(num)]


def jsonl(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def packed(data, name):
    if name.endswith(".gz"):
        return gzip.compress(data)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def read(path):
    rows = list(iter_raw_rows(str(path)))
    good = [row.content for row in rows if not isinstance(row, Unreadable)]
    parsed = [json.loads(row) if isinstance(row, bytes) else row for row in good]
    return parsed, [row for row in rows if isinstance(row, Unreadable)]


@pytest.mark.parametrize("name", ["p.jsonl.gz", "p.jsonl.zst", "p.json.gz", "p.json.zst"])
def test_packed_text_is_read_in_pieces(tmp_path, name):
    rows = rows_of(4000)  # more than two chunks
    data = jsonl(rows) if "jsonl" in name else json.dumps(rows).encode()
    (tmp_path / name).write_bytes(packed(data, name))
    assert read(tmp_path / name) == (rows, [])


@pytest.mark.parametrize("name", ["p.jsonl.gz", "p.jsonl.zst", "p.json.gz", "p.json.zst"])
def test_a_cut_stream_gives_what_is_whole_and_says_so(tmp_path, name):
    rows = rows_of(4000)
    data = jsonl(rows) if "jsonl" in name else json.dumps(rows).encode()
    whole = packed(data, name)
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    good, (last,) = read(tmp_path / name)
    assert 1500 < len(good) < 2500 and good == rows[: len(good)]
    assert last.place.number == len(good) + 1
    assert "stream is cut off" in last.problem


def test_members_one_after_the_other_are_one_file(tmp_path):
    rows = rows_of(20)
    for name in ("p.jsonl.gz", "p.jsonl.zst"):
        parts = [packed(jsonl(part), name) for part in (rows[:7], rows[7:], [])]
        (tmp_path / name).write_bytes(b"".join(parts))
        assert read(tmp_path / name) == (rows, [])


def test_output_that_fills_a_chunk_exactly(tmp_path):
    row = {"prompt": "x" * (2**20 - len('{"prompt": ""}\n'))}
    (tmp_path / "p.gz").write_bytes(gzip.compress(jsonl([row, row])))
    assert read(tmp_path / "p.gz") == ([row, row], [])


@pytest.mark.parametrize("name", ["p.jsonl.gz", "p.jsonl.zst"])
def test_a_damaged_stream_is_not_trusted(tmp_path, name):
    data = bytearray(packed(jsonl(rows_of(4000)), name))
    start = 20 if name.endswith("zst") else len(data) // 2
    data[start : start + 64] = bytes(64)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match="is damaged"):
        read(tmp_path / name)


def test_a_wrong_checksum_is_damage(tmp_path):
    data = bytearray(gzip.compress(jsonl(rows_of(3))))
    data[-8] ^= 1
    (tmp_path / "p.gz").write_bytes(data)
    with pytest.raises(DataError, match="is damaged"):
        read(tmp_path / "p.gz")


def test_names_and_contents_that_disagree(tmp_path):
    (tmp_path / "p.jsonl.gz").write_bytes(jsonl(rows_of(1)))
    with pytest.raises(DataError, match="named like a gzip file but its content is not"):
        read(tmp_path / "p.jsonl.gz")
    (tmp_path / "odd_name").write_bytes(packed(jsonl(rows_of(1)), ".zst"))
    assert read(tmp_path / "odd_name") == (rows_of(1), [])
    (tmp_path / "p.gz").write_bytes(gzip.compress(jsonl(rows_of(1)))[:8])
    with pytest.raises(DataError, match="cut off after 8 packed bytes; it holds no rows"):
        read(tmp_path / "p.gz")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"BZh91AY", "packed with bzip2: unpack it"),
        (b"PK\x03\x04....", "packed with zip"),
        ('{"prompt": "a"}'.encode("utf-16"), "is UTF-16 text: convert it to UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "is no text and no table"),
        (b"FEA1....", "Feather version 1"),
    ],
)
def test_other_contents_are_named(tmp_path, head, message):
    (tmp_path / "p.jsonl").write_bytes(head)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "p.jsonl")


def test_a_line_that_is_too_long_is_left_out(tmp_path, monkeypatch):
    from services.data.raw.json_lines import json_lines
    from services.data.raw.streams import Chunks

    data = b'{"a": 1}\n' + b"x" * 300 + b'\n\n{"a": 2}'
    pieces = iter([data[at : at + 10] for at in range(0, len(data), 10)])
    first, bad, second = json_lines(Chunks("f", pieces), max_row_bytes=100)
    assert (first.place.number, second.place.number) == (1, 4)
    assert second.content == b'{"a": 2}'
    assert bad.place.number == 2 and "longer than 100 B" in bad.problem
