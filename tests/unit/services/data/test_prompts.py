import json

import pytest

from services.data.bad_rows import BadRows
from services.data.conversation import conversation_sha256
from services.data.mapped import DigestCounts
from services.data.prompts import BadRow, number_rows
from services.data.raw import Place, RawRow
from services.data.shapes import RowShapes
from services.data.source import iter_prompts, read_prompts
from shared.config.data import DataSection
from shared.errors import DataError


def write(tmp_path, *lines):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"".join(x if isinstance(x, bytes) else x.encode() + b"\n" for x in lines))
    return path


def section(path, **fields):
    return DataSection(prompts=str(path), **fields)


def rows_of(path, **fields):
    with DigestCounts() as seen:
        return list(iter_prompts(section(path, **fields), seen))


def test_prompt_and_messages_rows_with_the_same_content_are_repeats(tmp_path):
    path = write(
        tmp_path,
        '{"prompt": "What is 2 + 2?", "id": "a", "kind": "sum", "answer": "4"}',
        "",
        '{"messages": [{"role": "user", "content": "What is 2 + 2?"}]}',
        '{"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}]}',
        '{"instruction": "What is 2 + 2?", "input": "", "output": "4"}',
    )
    rows = read_prompts(section(path))
    assert [row.index for row in rows] == [0, 1, 2, 3]
    assert [row.place.number for row in rows] == [1, 3, 4, 5]
    assert rows[0].sha256 == rows[1].sha256 == rows[3].sha256 != rows[2].sha256
    assert [row.occurrence for row in rows] == [0, 1, 0, 2]
    assert (rows[0].id, rows[0].kind, rows[0].extra) == ("a", "sum", {"answer": "4"})
    assert rows[0].messages == [{"role": "user", "content": "What is 2 + 2?"}]
    assert rows[3].answers == [{"role": "assistant", "content": "4"}]


def test_the_hash_of_a_plain_conversation_never_changes():
    # Completions of earlier runs are found again by it.
    plain = [
        {"role": "system", "content": "Be\u2028 brief \x01\n"},
        {"role": "user", "content": 'Grüße "an" \\ 世界 😀'},
    ]
    expected = "6ef9acf7aa0d74af8fda2f04253f7356f6fe2ec934848aa87728a81f33388adb"
    assert conversation_sha256(plain) == expected


def test_tools_calls_and_reasoning_are_content():
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    plain = [{"role": "user", "content": "1 + 2?"}, {"role": "assistant", "content": ""}]
    thought = [plain[0], {**plain[1], "reasoning_content": "three"}]
    called = [plain[0], {**plain[1], "tool_calls": [call]}]
    tools = [{"type": "function", "function": {"name": "add"}}]
    hashes = [conversation_sha256(one) for one in (plain, thought, called)]
    hashes += [conversation_sha256(plain, tools), conversation_sha256(called, tools)]
    assert len(set(hashes)) == 5
    turned = {"type": "function", "function": {"arguments": {"b": 2, "a": 1}, "name": "add"}}
    same = [plain[0], {"tool_calls": [turned], "content": "", "role": "assistant"}]
    assert conversation_sha256(same) == hashes[2]
    assert conversation_sha256(plain, []) == hashes[0]


def test_byte_order_mark_and_windows_line_ends(tmp_path):
    path = write(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}\r\n')
    assert [row.messages[0]["content"] for row in read_prompts(section(path))] == ["a", "b"]


BROKEN = {
    b"{not json": "not JSON",
    b'{"prompt": "\xff"}': "not UTF-8 (byte 0xff at column 13)",
    b'["prompt"]': "must be a JSON object, this one is a list",
    b'{"prompt": 3}': "'prompt' must be text, this one is a number",
    b'{"prompt": "  "}': "'prompt' is empty",
    b"{}": "has neither 'prompt' nor 'messages'",
    b'{"text": "a", "label": 1}': "its columns are 'text', 'label'",
    b'{"prompt": "a", "messages": []}': "has both 'prompt' and 'messages'",
    b'{"messages": []}': "at least one message",
    b'{"messages": ["a"]}': "messages[0] must be an object",
    b'{"messages": [{"role": "human", "content": "a"}]}': "messages[0].role is 'human'",
    b'{"messages": [{"role": "user", "content": [1]}]}': "messages[0].content must be text",
    b'{"messages": [{"role": "user"}]}': "messages[0].content must be text, this one is null",
    b'{"messages": [{"role": "assistant", "content": "b"}]}': "no user turn",
    b'{"messages": [{"role": "system", "content": "b"}]}': "no user turn",
    b'{"prompt": "\\ud800"}': "surrogate",
    b"[" * 100_000: "JSON",
}


@pytest.mark.parametrize("raw", BROKEN, ids=lambda raw: BROKEN[raw][:30])
def test_a_broken_row_is_named_with_its_line(tmp_path, raw):
    path = write(tmp_path, '{"prompt": "good"}', raw + b"\n")
    with pytest.raises(DataError) as caught:
        read_prompts(section(path))
    assert "line 2: " in caught.value.detail and str(path) in caught.value.detail
    assert BROKEN[raw] in caught.value.detail


def test_numbers_that_json_does_not_know_do_not_break_a_row(tmp_path):
    path = write(tmp_path, '{"prompt": "a", "score": NaN}')
    (row,) = read_prompts(section(path))
    assert row.extra["score"] != row.extra["score"]


def test_quarantine_puts_broken_rows_aside(tmp_path):
    path = write(tmp_path, "{", '{"prompt": "good"}', '{"prompt": 1}')
    assert [row.place.number for row in read_prompts(section(path, bad_rows="quarantine"))] == [2]
    found = rows_of(path)
    assert [isinstance(row, BadRow) for row in found] == [True, False, True]
    assert found[2].excerpt == '{"prompt": 1}'
    with pytest.raises(DataError, match=r"2 rows are broken: line 1.*line 3"):
        read_prompts(section(path))


def test_many_broken_rows_are_counted_and_not_all_listed(tmp_path):
    path = write(tmp_path, *["{"] * 30)
    with pytest.raises(DataError, match=r"30 rows are broken.*and 20 more"):
        read_prompts(section(path))


def test_reading_ends_when_all_the_first_rows_are_broken(tmp_path):
    path = write(tmp_path, *['{"question": "a"}'] * 1200, '{"prompt": "a"}')
    for policy in ("stop", "quarantine"):
        with pytest.raises(DataError, match=r"at least 1000 rows are broken.*data\.columns"):
            read_prompts(section(path, bad_rows=policy))


def test_a_stream_is_closed_where_reading_is_given_up():
    closed = []

    def raw_rows():
        try:
            for number in range(2000):
                yield RawRow(Place("f", "row", number), {"question": "a"})
        finally:
            closed.append(True)

    with DigestCounts() as seen, BadRows("f", "stop") as bad:
        rows = number_rows(raw_rows(), RowShapes(), seen)
        with pytest.raises(DataError) as caught:
            list(bad.good_rows(rows))
        # The error still holds the frames it came from, so nothing was closed by chance.
        assert closed and caught.value.detail.startswith("f: at least 1000")


def test_limit_stops_before_later_rows(tmp_path):
    path = write(tmp_path, '{"prompt": "a"}', '{"prompt": "b"}', "{")
    assert len(read_prompts(section(path, num_prompts=2))) == 2


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(DataError, match=r"does not exist; check data\.prompts"):
        read_prompts(section(tmp_path / "none.jsonl"))
    for lines in ((), ("", "  ")):
        with pytest.raises(DataError, match="holds no prompts"):
            read_prompts(section(write(tmp_path, *lines)))
    with pytest.raises(DataError, match="1 row is broken"):
        read_prompts(section(write(tmp_path, "{"), bad_rows="quarantine"))


def test_iteration_is_lazy_and_keeps_good_rows(tmp_path):
    path = write(tmp_path, *[json.dumps({"prompt": f"p{i}"}) for i in range(5)])
    with DigestCounts() as seen:
        first = next(iter_prompts(section(path), seen))
    assert first.sha256 == conversation_sha256([{"role": "user", "content": "p0"}])
