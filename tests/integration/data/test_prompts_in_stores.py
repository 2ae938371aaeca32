"""Prompts in object storage: every format, folders, globs, and connections that break."""

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.data.raw import Unreadable, iter_raw_rows
from services.data.source import count_prompts, open_split
from services.files import sha256_file
from services.object_stores import BlockingStore, LocalStore, open_store
from shared.errors import DataError, UnreachableError
from tests.helpers.mesh_contexts import tiny_config

ROWS = [{"prompt": f"question {at} " + "x" * 900} for at in range(3000)]


async def put(url, files):
    async with open_store(url) as store:
        for key, data in files.items():
            await store.put_bytes(key, data)


def parquet(rows):
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=1000)
    return sink.getvalue()


def lines(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture
def read():
    """Reading blocks, so it must not be called where an event loop runs."""

    def read(url, format_="auto"):
        rows = list(iter_raw_rows(url, format_))
        good = [row.content for row in rows if not isinstance(row, Unreadable)]
        parsed = [json.loads(row) if isinstance(row, bytes) else row for row in good]
        return parsed, [row for row in rows if isinstance(row, Unreadable)]

    return read


@pytest.mark.s3
async def test_every_format_from_s3(s3_url, read, tmp_path):
    datasets.Dataset.from_list(ROWS[:50]).save_to_disk(tmp_path / "saved", num_shards=2)
    saved = {f"saved/{path.name}": path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    files = {
        "a/1.jsonl": lines(ROWS[:2000]),
        "a/2.jsonl.gz": gzip.compress(lines(ROWS[2000:]), 1),
        "a/.hidden.jsonl": b"{}",
        "all.json": json.dumps(ROWS).encode(),
        "p/x.parquet": parquet(ROWS),
        **saved,
    }
    await put(s3_url, files)

    async def found(suffix, format_="auto"):
        return await asyncio.to_thread(read, f"{s3_url}/{suffix}", format_)

    assert await found("a") == await found("a/") == await found("a/*") == (ROWS, [])
    assert await found("all.json") == await found("p/x.parquet") == (ROWS, [])
    assert await found("*/1.js*") == (ROWS[:2000], [])
    assert await found("saved", "datasets") == (ROWS[:50], [])
    for missing in ("none", "none/x.jsonl", "none*"):
        with pytest.raises(DataError, match=r"check data\.prompts"):
            await found(missing)


@pytest.mark.s3
async def test_a_run_takes_its_prompts_from_s3(s3_url, tmp_path):
    await put(s3_url, {"p.jsonl": lines([*ROWS[:100], {"prompt": 1}])})
    overrides = {
        "data.prompts": f"{s3_url}/p.jsonl",
        "data.num_prompts": None,
        "data.bad_rows": "quarantine",
        "data.max_held_out": 3,
    }
    config = tiny_config(overrides)
    counts = await asyncio.to_thread(count_prompts, config)
    assert (counts.training, counts.held_out, counts.bad_rows) == (97, 3, 1)

    def first_row():
        with open_split(config, folder=tmp_path, bad_rows_path=tmp_path / "bad") as split:
            return split.training[0]

    row = await asyncio.to_thread(first_row)
    assert row.place.file == f"{s3_url}/p.jsonl"
    bad = json.loads((tmp_path / "bad").read_text())
    assert (bad["place"]["file"], bad["place"]["number"]) == (f"{s3_url}/p.jsonl", 101)


@pytest.mark.s3
async def test_reading_that_ends_early_leaves_no_connection(s3_url):
    await put(s3_url, {"p.jsonl": lines(ROWS), "q.parquet": parquet(ROWS)})
    for name in ("p.jsonl", "q.parquet"):
        named = {"data.prompts": f"{s3_url}/{name}", "data.max_held_out": 0}
        counts = await asyncio.to_thread(count_prompts, tiny_config(named))
        assert counts.usable == 25
        wrong = {**named, "data.num_prompts": None, "data.columns.prompt": "question"}
        with pytest.raises(DataError, match=r"at least 1000 rows are broken.*has no 'question'"):
            await asyncio.to_thread(count_prompts, tiny_config(wrong))


class BreakingStore(LocalStore):
    """Connections end after some chunks, a number of times."""

    failures = 2
    starts: list[int]

    async def read(self, key: str, *, start: int = 0) -> AsyncIterator[bytes]:
        self.starts.append(start)
        given = 0
        async for chunk in super().read(key, start=start):
            if given == 2 and self.failures:
                self.failures -= 1
                raise UnreachableError("the connection broke")
            given += 1
            yield chunk


def test_a_broken_connection_goes_on_at_the_byte_where_it_broke(tmp_path, monkeypatch):
    monkeypatch.setattr("services.object_stores.blocking._FIRST_PAUSE_S", 0.0)
    (tmp_path / "big").write_bytes(bytes(range(256)) * 4 * 6000)  # 6 chunks
    expected = sha256_file(tmp_path / "big")
    inner = BreakingStore(tmp_path)
    inner.starts = []
    with BlockingStore(inner) as store:
        info = store.head("big")
        with store.open(info) as file, (tmp_path / "copy").open("wb") as copy:
            while chunk := file.read(300_000):
                copy.write(chunk)
        assert sha256_file(tmp_path / "copy") == expected
        assert inner.starts == [0, 2 * 2**20, 4 * 2**20]
        inner.failures = 10
        inner.starts.clear()
        monkeypatch.setattr(BreakingStore, "failures", 10)
        with store.open(info) as file:
            file.seek(-5, io.SEEK_END)
            assert file.read(10) == bytes(range(251, 256)) and file.read(1) == b""
            file.seek(256)
            assert file.read(2) == b"\0\1" and inner.starts == [info.num_bytes - 5, 256]


def test_an_outage_that_lasts_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("services.object_stores.blocking._FIRST_PAUSE_S", 0.0)

    class Down(LocalStore):
        async def read(self, key: str, *, start: int = 0) -> AsyncIterator[bytes]:
            raise UnreachableError("nobody there")
            yield b""

    (tmp_path / "big").write_bytes(b"x")
    with BlockingStore(Down(tmp_path)) as store:
        info = store.head("big")
        with store.open(info) as file, pytest.raises(UnreachableError, match="nobody there"):
            file.read(1)
