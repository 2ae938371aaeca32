import errno
import json
import os

import pytest

from shared.errors import DiskFullError, IntegrityError, InUseError
from shared.layout import RunFolder
from shared.messages import Completion
from workers.generator.books import (
    EarlierBooks,
    Failure,
    FailureBook,
    format_ranges,
    parse_ranges,
    read_books,
    write_books,
)
from workers.generator.log import CompletionLog


def completion(seq, index=None):
    return Completion(
        seq=seq,
        prompt_index=seq if index is None else index,
        prompt_sha256=f"{seq:064x}",
        occurrence=0,
        prompt_ids=[1, 2],
        output_ids=[3, 4, 5],
        finish_reason="stop",
        thinking=True,
        text="an answer\nwith a line break\u2028and another",
        sampling={"temperature": 0.7, "seed": 5},
    )


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


@pytest.fixture
def open_log(folder):
    """The log opened anew, as by a generator after the one before has ended."""
    opened = []

    def again(**options):
        for log in opened:
            log.close()
        opened.append(CompletionLog(folder, 4, **options))
        return opened[-1]

    yield again
    for log in opened:
        log.close()


def test_append_and_read_across_files(folder, open_log):
    log = open_log()
    first = log.append([completion(seq) for seq in range(3)])
    assert (first.next_seq, first.closed_files) == (3, [])
    second = log.append([completion(seq) for seq in range(3, 10)])
    assert [path.name for path in second.closed_files] == [
        "batch_000000.jsonl",
        "batch_000001.jsonl",
    ]
    assert [one.seq for one in log.read(0, 100)] == list(range(10))
    assert [one.seq for one in log.read(3, 4)] == [3, 4, 5, 6]
    assert log.read(10, 5) == []
    log.append([completion(10)])  # the cached last file has grown
    assert [one.seq for one in log.read(8, 100)] == [8, 9, 10]
    assert log.read(9, 1) == [completion(9)]


def test_reopening_goes_on_where_it_stopped(folder, open_log):
    open_log().append([completion(seq, index=seq * 2) for seq in range(6)])
    log = open_log()
    assert (log.next_seq, log.num_output_tokens, log.num_cut_bytes) == (6, 18, 0)
    assert log.done == {0, 2, 4, 6, 8, 10}
    log.append([completion(seq) for seq in range(6, 9)])
    assert [one.seq for one in open_log().read(0, 99)] == list(range(9))


@pytest.mark.parametrize("kept", [0, 1, 17, -1])
def test_a_torn_last_line_is_cut_at_restart(folder, open_log, kept):
    log = open_log()
    log.append([completion(seq) for seq in range(6)])
    path = folder.completions_batch(1)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    torn = lines[1][:kept]
    path.write_bytes(lines[0] + torn)
    again = open_log()
    assert again.next_seq == 5 and again.num_cut_bytes == len(torn)
    again.append([completion(5)])
    assert path.read_bytes() == whole


def test_damage_elsewhere_is_not_repaired_silently(folder, open_log):
    open_log().append([completion(seq) for seq in range(9)])
    first = folder.completions_batch(0)
    data = first.read_bytes()
    first.write_bytes(data[:-20])
    with pytest.raises(IntegrityError, match="middle of a line"):
        open_log()
    first.write_bytes(b"".join(data.splitlines(keepends=True)[:3]))
    with pytest.raises(IntegrityError, match="has 3 lines"):
        open_log()
    for old, new in (
        (b'"seq":2', b'"seq":7'),
        (b"[3,4,5]", b"[3,4,7]"),
        (b',"crc32"', b',"crc33"'),
    ):
        first.write_bytes(data.replace(old, new))
        with pytest.raises(IntegrityError, match=r"line [13] is damaged: .*checksum"):
            open_log()
    first.unlink()
    with pytest.raises(IntegrityError, match=r"lacks batch_000000\.jsonl"):
        open_log()


def test_fewer_completions_than_the_books_say_change_nothing(folder, open_log):
    log = open_log()
    log.append([completion(seq) for seq in range(6)])
    path = folder.completions_batch(1)
    path.write_bytes(path.read_bytes()[:-1])  # the last newline is gone: the line looks torn
    before = path.read_bytes()
    with pytest.raises(IntegrityError, match=r"holds 5 completions in 2 batch files, but 6 were"):
        open_log(at_least=6)
    assert path.read_bytes() == before
    for index in range(2):
        folder.completions_batch(index).unlink()
    with pytest.raises(IntegrityError, match="holds 0 completions"):
        open_log(at_least=6)


def test_the_books_remember_what_was_sealed(folder):
    folder.dataset.mkdir()
    folder.dataset_json.write_text('{"segments": [{"next_seq": 4}, {"next_seq": 9}]}')
    assert read_books(folder) == EarlierBooks(9, False)
    folder.dataset_json.write_text('{"segments": [{}]}')
    with pytest.raises(IntegrityError, match="is damaged"):
        read_books(folder)


def test_only_one_generator_has_the_log(folder, open_log):
    log = open_log()
    with pytest.raises(InUseError, match="another generator"):
        CompletionLog(folder, 4)
    log.close()
    open_log()


def test_a_full_disk_leaves_the_log_as_it_was(folder, open_log, monkeypatch):
    log = open_log()
    log.append([completion(0)])
    real = os.fsync

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match="free some space"):
        log.append([completion(1)])
    monkeypatch.setattr(os, "fsync", real)
    assert log.next_seq == 1
    log.append([completion(1)])
    assert open_log().next_seq == 2


def test_books_say_what_the_log_holds(folder, open_log):
    log = open_log()
    log.append([completion(seq, index) for seq, index in enumerate((0, 1, 5))])
    assert read_books(folder) == EarlierBooks(0, False)
    write_books(folder, log, num_prompts=9, num_failed=1, finished=True)
    progress = json.loads((folder.completions / "progress.json").read_text())
    assert progress == {
        "completions_done": 3,
        "completions_failed": 1,
        "completions_total": 9,
        "output_tokens": 9,
        "files": 1,
        "finished": True,
    }
    assert (folder.completions / "done_index").read_text() == "0-1\n5-5\n"
    assert read_books(folder) == EarlierBooks(3, True)


def test_ranges_round_trip():
    for indices in (set(), {0}, {0, 1, 2, 5, 9, 10}):
        assert parse_ranges(format_ranges(indices)) == indices


def test_failures_are_kept_with_their_cause(folder):
    folder.completions.mkdir()
    book = FailureBook(folder)
    book.add(Failure(3, "aa", "upstream", "answered 500", attempt=1, final=False))
    book.add(Failure(4, "bb", "upstream", "answered 500", attempt=1, final=False))
    book.add(Failure(3, "aa", "upstream", "answered 500 again", attempt=2, final=True))
    with (folder.completions / "failures.jsonl").open("ab") as file:
        file.write(b'{"prompt_index": 9')
    again = FailureBook(folder)
    assert again.final_indices() == {3}
    assert (again.attempts(3), again.attempts(4), again.attempts(9)) == (2, 1, 0)
    assert again.latest[3].cause == "answered 500 again"
