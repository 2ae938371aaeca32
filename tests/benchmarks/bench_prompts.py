"""Reading prompts: speed, and the anonymous memory it takes, beside the bare parser.

    python -m tests.benchmarks.bench_prompts [--gigabytes 10] [--formats jsonl,json,...]
        [--works count,split] [--row-bytes 2000] [--folder DIR] [--file FILE]

Writes a file of conversations, each one different, and reads it in a process of its
own, as the check before a run does (count) and as the generator does (split: checked, spooled to
the disk, read back). The limit is 500 MB of anonymous memory (RssAnon) for 10 GB. `--file` reads a
file that exists instead. Sizes are unpacked ones. CPU seconds
are what a busy machine does not blur.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from shared.units import format_bytes
from tests.helpers.memory import measure_in_process
from tests.helpers.mesh_contexts import TINY

LIMIT_BYTES = 500 * 10**6
TEXT = b'the model writes an {answer} to [each] question \\"and\\" then\\n more \xc3\xbc of it, '


def conversations(row_bytes: int) -> Iterator[bytes]:
    """Rows as JSON text without end."""
    rng = random.Random(0)
    texts = [TEXT[rng.randrange(5) :] * max(1, row_bytes // len(TEXT) // 3) for _ in range(100)]
    for number in itertools.count():
        first, second, third = (texts[(number * k + k) % 100] for k in (1, 7, 11))
        yield (
            b'{"id": %d, "messages": [{"role": "user", "content": "%d %s"}, {"role": "assistant", '
            b'"content": "%s"}, {"role": "user", "content": "%s"}]}'
            % (number, number, first, second, third)
        )


def limited(rows: Iterable[bytes], num_bytes: int) -> Iterator[bytes]:
    """Rows up to a number of bytes."""
    done = 0
    for row in rows:
        yield row
        done += len(row)
        if done >= num_bytes:
            return


def write_lines(path: Path, rows: Iterator[bytes]) -> None:
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    arguments = ("wb", 1) if path.suffix == ".gz" else ("wb",)
    with opener(path, *arguments) as file:
        file.writelines(row + b"\n" for row in rows)


def write_zst(path: Path, rows: Iterator[bytes]) -> None:
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        while part := list(itertools.islice(rows, 1000)):
            file.write(b"\n".join(part) + b"\n")


def write_array(path: Path, rows: Iterator[bytes]) -> None:
    with path.open("wb") as file:
        file.write(b"[" + next(rows))
        file.writelines(b",\n  " + row for row in rows)
        file.write(b"]\n")


def write_parquet(path: Path, rows: Iterator[bytes]) -> None:
    writer = None
    while part := [orjson.loads(row) for row in itertools.islice(rows, 20_000)]:
        table = pa.Table.from_pylist(part)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def write_arrow(path: Path, rows: Iterator[bytes]) -> None:
    stream = None
    while part := [orjson.loads(row) for row in itertools.islice(rows, 1000)]:
        table = pa.Table.from_pylist(part)
        stream = stream or pa.ipc.new_stream(str(path), table.schema)
        stream.write_table(table)
    assert stream is not None
    stream.close()


WRITERS: dict[str, tuple[str, Callable[[Path, Iterator[bytes]], None]]] = {
    "jsonl": ("p.jsonl", write_lines),
    "json": ("p.json", write_array),
    "jsonl.gz": ("p.jsonl.gz", write_lines),
    "jsonl.zst": ("p.jsonl.zst", write_zst),
    "parquet": ("p.parquet", write_parquet),
    "arrow": ("p.arrow", write_arrow),
}


def ceiling_mb_per_s(row_bytes: int) -> float:
    """What orjson alone parses of these rows in memory."""
    rows = list(limited(conversations(row_bytes), 50 * 10**6))
    started = time.process_time()
    for row in rows:
        orjson.loads(row)
    return sum(map(len, rows)) / (time.process_time() - started) / 1e6


def report(name: str, path: Path, num_bytes: int, works: list[str]) -> None:
    for work in works:
        config = path.parent / "config.json.txt"
        data = {"prompts": str(path), "bad_rows": "quarantine"}
        config.write_text(json.dumps({**TINY, "data": data}))
        found = measure_in_process(config, work)
        per_cpu_s = num_bytes / found["cpu_seconds"] / 1e6
        verdict = "within" if found["peak"] <= LIMIT_BYTES else "ABOVE"
        print(
            f"{name:10} {work:8} {format_bytes(num_bytes):>9} {found['result']:>9} rows "
            f"{found['seconds']:7.1f} s  {found['cpu_seconds']:7.1f} CPU s = "
            f"{per_cpu_s:4.0f} MB each  peak {format_bytes(found['peak']):>9} "
            f"({verdict} {format_bytes(LIMIT_BYTES)})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--formats", default=",".join(WRITERS))
    parser.add_argument("--works", default="count,split")
    parser.add_argument("--folder", type=Path, help="where there is room for the files")
    parser.add_argument("--row-bytes", type=int, default=2000)
    parser.add_argument("--file", type=Path)
    given = parser.parse_args()
    works = given.works.split(",")
    print(f"orjson alone: {ceiling_mb_per_s(given.row_bytes):.0f} MB a CPU second")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        if given.file is not None:
            link = folder / given.file.name
            link.symlink_to(given.file.resolve())
            report(given.file.suffix[1:], link, given.file.stat().st_size, works)
            return
        num_bytes = int(given.gigabytes * 1e9)
        for format_ in given.formats.split(","):
            file_name, write = WRITERS[format_]
            write(folder / file_name, limited(conversations(given.row_bytes), num_bytes))
            report(format_, folder / file_name, num_bytes, works)
            (folder / file_name).unlink()


if __name__ == "__main__":
    main()
