import json

import pytest

from services.data.prompts import BadRow, conversation_sha256, iter_prompts, read_prompts
from shared.errors import DataError


def write(tmp_path, *lines):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"".join(x if isinstance(x, bytes) else x.encode() + b"\n" for x in lines))
    return path


def test_prompt_and_messages_rows_with_the_same_content_are_repeats(tmp_path):
    path = write(
        tmp_path,
        '{"prompt": "What is 2 + 2?", "id": "a", "kind": "sum", "answer": "4"}',
        "",
        '{"messages": [{"role": "user", "content": "What is 2 + 2?"}]}',
        '{"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}]}',
    )
    rows = read_prompts(path).rows
    assert [row.index for row in rows] == [0, 1, 2]
    assert [row.line for row in rows] == [1, 3, 4]
    assert rows[0].sha256 == rows[1].sha256 != rows[2].sha256
    assert [row.occurrence for row in rows] == [0, 1, 0]
    assert (rows[0].id, rows[0].kind, rows[0].extra) == ("a", "sum", {"answer": "4"})
    assert rows[0].messages == [{"role": "user", "content": "What is 2 + 2?"}]


def test_byte_order_mark_and_windows_line_ends(tmp_path):
    path = write(tmp_path, b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}\r\n')
    assert [row.messages[0]["content"] for row in read_prompts(path).rows] == ["a", "b"]


BROKEN = {
    b"{not json": "not JSON",
    b'{"prompt": "\xff"}': "not UTF-8 (byte 0xff at column 13)",
    b'["prompt"]': "must be a JSON object, this one is a list",
    b'{"prompt": 3}': "'prompt' must be text, this one is a number",
    b'{"prompt": "  "}': "'prompt' is empty",
    b"{}": "has neither 'prompt' nor 'messages'",
    b'{"prompt": "a", "messages": []}': "has both",
    b'{"messages": []}': "at least one message",
    b'{"messages": ["a"]}': "messages[0] must be an object",
    b'{"messages": [{"role": "human", "content": "a"}]}': "messages[0].role is 'human'",
    b'{"messages": [{"role": "user", "content": [1]}]}': "messages[0].content must be text",
    b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}': (
        "ends with role 'assistant'"
    ),
    b'{"prompt": "\\ud800"}': "surrogate",
    b"[" * 100_000: "JSON",
}


@pytest.mark.parametrize("raw", BROKEN, ids=lambda raw: BROKEN[raw][:30])
def test_a_broken_row_is_named_with_its_line(tmp_path, raw):
    path = write(tmp_path, '{"prompt": "good"}', raw + b"\n")
    with pytest.raises(DataError) as caught:
        read_prompts(path)
    assert "line 2: " in caught.value.detail and str(path) in caught.value.detail
    assert BROKEN[raw] in caught.value.detail


def test_quarantine_puts_broken_rows_aside(tmp_path):
    path = write(tmp_path, "{", '{"prompt": "good"}', '{"prompt": 1}')
    found = read_prompts(path, bad_rows="quarantine")
    assert [row.line for row in found.rows] == [2]
    assert [(row.line, type(row)) for row in found.bad] == [(1, BadRow), (3, BadRow)]
    with pytest.raises(DataError, match=r"2 rows are broken.*line 1.*line 3"):
        read_prompts(path)


def test_many_broken_rows_are_counted_and_not_all_listed(tmp_path):
    path = write(tmp_path, *["{"] * 30)
    with pytest.raises(DataError, match=r"30 rows are broken.*and 20 more"):
        read_prompts(path)


def test_limit_stops_before_later_rows(tmp_path):
    path = write(tmp_path, '{"prompt": "a"}', '{"prompt": "b"}', "{")
    assert len(read_prompts(path, limit=2).rows) == 2


def test_missing_empty_and_unusable_files(tmp_path):
    with pytest.raises(DataError, match=r"does not exist; check data\.prompts"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="holds no prompts"):
        read_prompts(write(tmp_path, "", "  "))
    with pytest.raises(DataError, match="cannot be read"):
        read_prompts(tmp_path)
    with pytest.raises(DataError, match="1 row is broken"):
        read_prompts(write(tmp_path, "{"), bad_rows="quarantine")


def test_iteration_is_lazy_and_keeps_good_rows(tmp_path):
    path = write(tmp_path, *[json.dumps({"prompt": f"p{i}"}) for i in range(5)])
    first = next(iter_prompts(path))
    assert first.sha256 == conversation_sha256([{"role": "user", "content": "p0"}])
