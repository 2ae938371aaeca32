"""Prompts of a run: JSONL rows to checked conversations with a content hash.

    prompts.jsonl -> iter_prompts -> PromptRow | BadRow -> read_prompts -> PromptSet

A row is an object with `prompt` (text of one user turn) or `messages` (chat turns that end with a
user turn), and optionally `id` and `kind`; further fields are kept as they are. Two rows with the
same conversation have the same `sha256` and are told apart by `occurrence`, counted in file order.
`index` counts the good rows, so it is stable as long as the file is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from shared.errors import DataError

ROLES = ("system", "user", "assistant", "tool")
_SHOWN_PROBLEMS = 10
_MAX_LINE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One conversation that waits for the target's answer."""

    index: int
    line: int
    sha256: str
    occurrence: int
    messages: list[dict[str, str]]
    id: str | None = None
    kind: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used, and why."""

    line: int
    problem: str
    excerpt: str


@dataclass(frozen=True)
class PromptSet:
    """All usable rows in file order, and the rows that were put aside."""

    rows: list[PromptRow]
    bad: list[BadRow]


def conversation_sha256(messages: Iterable[Mapping[str, str]]) -> str:
    """Hex digest of a conversation's content: roles and texts, nothing else of the row."""
    turns = [[message["role"], message["content"]] for message in messages]
    text = json.dumps(turns, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_prompts(
    path: Path, *, bad_rows: Literal["stop", "quarantine"] = "stop", limit: int | None = None
) -> PromptSet:
    """Read up to `limit` usable rows.

    Raises DataError when the file is missing, unreadable or holds no usable row, and, with
    bad_rows "stop", when any row read is broken (with the line numbers of the first ones).
    """
    return collect_prompts(iter_prompts(path, limit=limit), source=str(path), bad_rows=bad_rows)


def collect_prompts(
    rows: Iterable[PromptRow | BadRow], *, source: str, bad_rows: Literal["stop", "quarantine"]
) -> PromptSet:
    """Separate good from bad rows and apply the `data.bad_rows` rule."""
    good: list[PromptRow] = []
    bad: list[BadRow] = []
    for row in rows:
        if isinstance(row, BadRow):
            bad.append(row)
        else:
            good.append(row)
    if bad and bad_rows == "stop":
        raise DataError(_bad_rows_message(source, bad))
    if not good:
        reason = _bad_rows_message(source, bad) if bad else f"{source} holds no prompts"
        raise DataError(f"{reason}; give at least one row with 'prompt' or 'messages'")
    return PromptSet(good, bad)


def iter_prompts(path: Path, *, limit: int | None = None) -> Iterator[PromptRow | BadRow]:
    """Rows in file order, good and bad; blank lines are skipped. DataError for the file itself."""
    yield from number_rows(_lines(path), limit=limit)


def number_rows(
    lines: Iterable[tuple[int, bytes | Mapping[str, Any]]], *, limit: int | None = None
) -> Iterator[PromptRow | BadRow]:
    """Parse (line number, row) pairs, and number rows and repeats of the same conversation."""
    seen: dict[str, int] = {}
    index = 0
    for line, raw in lines:
        if limit is not None and index >= limit:
            return
        try:
            tree = parse_row(raw) if isinstance(raw, bytes) else raw
            messages = row_messages(tree)
        except DataError as error:
            yield BadRow(line, error.detail, excerpt=_excerpt(raw))
            continue
        sha256 = conversation_sha256(messages)
        occurrence = seen.get(sha256, 0)
        seen[sha256] = occurrence + 1
        known = ("prompt", "messages", "id", "kind")
        yield PromptRow(
            index=index,
            line=line,
            sha256=sha256,
            occurrence=occurrence,
            messages=messages,
            id=None if tree.get("id") is None else str(tree["id"]),
            kind=None if tree.get("kind") is None else str(tree["kind"]),
            extra={key: value for key, value in tree.items() if key not in known},
        )
        index += 1


def parse_row(raw: bytes) -> Mapping[str, Any]:
    """One JSONL line as an object; DataError says what is wrong with it."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise DataError(f"not UTF-8 (byte 0x{byte:02x} at column {error.start + 1})") from None
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise DataError("not usable JSON (nested too deeply)") from None
    if not isinstance(tree, dict):
        raise DataError(f"a row must be a JSON object, this one is {_kind_of(tree)}")
    return tree


def row_messages(tree: Mapping[str, Any]) -> list[dict[str, str]]:
    """The conversation of a row, checked turn by turn; DataError names the field."""
    prompt, messages = tree.get("prompt"), tree.get("messages")
    if prompt is not None and messages is not None:
        raise DataError("has both 'prompt' and 'messages'; give one of them")
    if prompt is not None:
        if not isinstance(prompt, str):
            raise DataError(f"'prompt' must be text, this one is {_kind_of(prompt)}")
        if not prompt.strip():
            raise DataError("'prompt' is empty")
        return [{"role": "user", "content": _encodable(prompt, "'prompt'")}]
    if messages is None:
        raise DataError("has neither 'prompt' nor 'messages'")
    if not isinstance(messages, list) or not messages:
        raise DataError("'messages' must be a list with at least one message")
    checked = [_message(message, f"messages[{at}]") for at, message in enumerate(messages)]
    if checked[-1]["role"] not in ("user", "tool"):
        raise DataError(
            f"'messages' ends with role {checked[-1]['role']!r}; it must end with 'user', since "
            "the target writes the answer (remove the answers that the row has already)"
        )
    return checked


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise DataError(f"{where} must be an object with 'role' and 'content'")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise DataError(f"{where}.role is {role!r}; use one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise DataError(f"{where}.content must be text, this one is {_kind_of(content)}")
    if role == "user" and not content.strip():
        raise DataError(f"{where}.content is empty")
    return {"role": role, "content": _encodable(content, f"{where}.content")}


def _encodable(text: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(f"{where} holds half of a surrogate pair, which is not text") from None
    return text


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        handle = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"prompts file {path} does not exist; check data.prompts") from None
    except OSError as error:
        raise DataError(f"prompts file {path} cannot be read: {error.strerror}") from None
    with handle:
        number = 0
        while raw := handle.readline(_MAX_LINE_BYTES):
            number += 1
            if len(raw) == _MAX_LINE_BYTES and not raw.endswith(b"\n"):
                raise DataError(
                    f"{path}, line {number}: longer than {_MAX_LINE_BYTES // 2**20} MiB; the file "
                    "must have one JSON object a line"
                )
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if raw.strip():
                yield number, raw.strip(b"\r\n")


def _bad_rows_message(source: str, bad: list[BadRow]) -> str:
    shown = "; ".join(f"line {row.line}: {row.problem}" for row in bad[:_SHOWN_PROBLEMS])
    more = f"; and {len(bad) - _SHOWN_PROBLEMS} more" if len(bad) > _SHOWN_PROBLEMS else ""
    rows = "row is" if len(bad) == 1 else "rows are"
    return (
        f"{source}: {len(bad)} {rows} broken: {shown}{more} "
        "(data.bad_rows = 'quarantine' puts broken rows aside and goes on)"
    )


def _excerpt(raw: bytes | Mapping[str, Any]) -> str:
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else json.dumps(dict(raw))
    return text[:200]


def _kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")
