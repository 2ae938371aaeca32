import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.data.raw import Unreadable, iter_raw_rows
from services.data.raw.json_array import json_array
from services.data.raw.streams import Chunks

HARD = [
    {"text": 'braces } ] { [ , " and \\ and \\" in text', "n": [1, {"a": []}]},
    {"text": "unbalanced {{{{"},
    {"text": "}}}}", "inner": {"deep": {"deeper": ["},{", "]"]}}},
    {},
    {"é": "世界 😀 \u2028", "empty": ""},
    {"text": "x" * 300},
]


def read(data, size=2**20, **options):
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return list(json_array(Chunks("f.json", iter(pieces)), **options))


def content(row):
    return json.loads(row.content) if isinstance(row.content, bytes) else row.content


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("size", [1, 2, 7, 64, 2**20])
def test_records_come_out_whole_however_the_chunks_fall(size, indent):
    data = b"\xef\xbb\xbf \n" + json.dumps(HARD, indent=indent, ensure_ascii=False).encode() + b"\n"
    rows = read(data, size)
    assert [content(row) for row in rows] == HARD
    for number, row in enumerate(rows, 1):
        assert (row.place.unit, row.place.number) == ("record", number)
        decoder = json.JSONDecoder()
        assert decoder.raw_decode(data[row.place.byte :].decode())[0] == content(row)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(st.text(), json_values, max_size=4), max_size=6), st.data())
def test_any_array_and_any_cut(records, data):
    text = json.dumps(records, ensure_ascii=data.draw(st.booleans())).encode()
    rows = read(text, data.draw(st.integers(1, 50)))
    assert [content(row) for row in rows] == records
    end = data.draw(st.integers(1, len(text) - 1))
    *whole, last = read(text[:end], data.draw(st.integers(1, 50)))
    assert isinstance(last, Unreadable) and f"the file ends at byte {end} " in last.problem
    assert [content(row) for row in whole] == records[: len(whole)]
    # Every record whose last brace is there has come out.
    ends, decoder, at = [], json.JSONDecoder(), 1
    for _ in records:
        at = len(text) - len(text[at:].lstrip(b", "))
        value, length = decoder.raw_decode(text[at:].decode())
        at += len(json.dumps(value, ensure_ascii=text.isascii()).encode()) if value else 2
        ends.append(at)
        assert length
    assert len(whole) == sum(one <= end for one in ends)


def test_the_cut_is_named_by_record_and_byte():
    data = b'[{"a": 1},\n {"a": 2},\n {"a": "th'
    *whole, last = read(data)
    assert [content(row) for row in whole] == [{"a": 1}, {"a": 2}]
    assert (last.place.number, last.place.byte) == (3, 23)
    assert last.problem == (
        "the array is cut off: the file ends at byte 32 inside record 3, which begins at byte 23; "
        "the 2 records before are whole"
    )
    assert last.excerpt == '{"a": "th'
    for ending in (b"", b",", b", \n"):
        *whole, last = read(b'[{"a": 1}' + ending)
        assert [content(row) for row in whole] == [{"a": 1}]
        assert "after record 1, before the closing ']'" in last.problem


def test_a_record_that_is_broken_inside_does_not_hide_the_next():
    rows = read(b'[{"a": 1}, {"a": oops}, {"a": 2},, 7, "x, y", [1, 2], {"a": 3}]')
    assert [row.content for row in rows if isinstance(row.content, bytes)] == [
        b'{"a": oops}', b"", b"7", b'"x, y"', b"[1, 2]", b'{"a": 3}',
    ]  # fmt: skip
    assert [row.place.number for row in rows] == list(range(1, 9))


def test_empty_arrays_and_text_behind_the_end():
    assert read(b"[]") == read(b" [ \n] \n ") == []
    *rows, last = read(b'[{"a": 1}] [')
    assert [content(row) for row in rows] == [{"a": 1}]
    assert last.place.byte == 11 and "more text behind the end" in last.problem


def test_what_never_ends_is_given_up_at_a_limit():
    data = b'[{"a": 1}, {"a": "' + b"x" * 5000
    *rows, last = read(data, 100, max_row_bytes=1000)
    assert [content(row) for row in rows] == [{"a": 1}]
    assert "longer than 1.00 kB" in last.problem and last.place.byte == 11


def test_a_large_file_with_code_in_its_texts(tmp_path):
    rng = random.Random(0)
    pieces = ["}", "{", "\\", '"', "],", "[{", "\n", "word ", "},{", "\\n"]
    records = [
        {"t": "".join(rng.choices(pieces, k=rng.randrange(400))), "n": at} for at in range(3000)
    ]
    path = tmp_path / "large.json"
    path.write_text(json.dumps(records))
    assert path.stat().st_size > 2**20
    assert [content(row) for row in iter_raw_rows(str(path))] == records
