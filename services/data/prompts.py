"""Prompts: rows of any format and shape to checked conversations with a content hash.

    iter_raw_rows -> parse -> RowShapes -> number_rows -> PromptRow | BadRow

Two rows with the same conversation have the same `sha256` and are told apart by `occurrence`,
counted in order; the answers that a row has already are not part of it. `index` counts the good
rows, so it is stable as long as the files are. Rows come one by one: what is kept of those that
have gone by is their hashes, in mapped files.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

import msgspec
import orjson

from services.data.conversation import Message, conversation_sha256, kind_of
from services.data.mapped import DigestCounts
from services.data.raw import Place, RawRow, Unreadable
from services.data.shapes import RowShapes
from shared.errors import DataError

_EXCERPT_CHARS = 200


class PromptRow(msgspec.Struct, frozen=True):
    """One conversation that waits for the target's answer.

    `messages` ends with a user turn or a tool's result; `answers` are the assistant's turns that
    the row has behind it already. `extra` are the row's other columns.
    """

    index: int
    place: Place
    sha256: str
    occurrence: int
    messages: list[Message]
    answers: list[Message] = []
    tools: list[dict[str, Any]] | None = None
    id: str | None = None
    kind: str | None = None
    extra: dict[str, Any] = {}

    @property
    def conversation(self) -> list[Message]:
        """All turns of the row, its own answers included."""
        return [*self.messages, *self.answers]


class BadRow(msgspec.Struct, frozen=True):
    """A row that cannot be used, or a place behind which nothing can be read, and why."""

    place: Place
    problem: str
    excerpt: str


def number_rows(
    rows: Generator[RawRow | Unreadable, None, None],
    shapes: RowShapes,
    seen: DigestCounts,
    *,
    limit: int | None = None,
) -> Generator[PromptRow | BadRow, None, None]:
    """Parse and check rows, and number them and the repeats of the same conversation.

    Ends after `limit` good rows; `seen` counts their contents. `rows` is closed with this, in the
    same thread, since a connection may hang on it.
    """
    index = 0
    with closing(rows):
        for row in rows:
            if limit is not None and index >= limit:
                return
            if isinstance(row, Unreadable):
                yield BadRow(row.place, row.problem, row.excerpt)
                continue
            try:
                tree = parse_row(row.content) if isinstance(row.content, bytes) else row.content
                found = shapes.conversation(tree)
            except DataError as error:
                yield BadRow(row.place, error.detail, _excerpt(row.content))
                continue
            sha256 = conversation_sha256(found.messages, found.tools)
            occurrence = seen.add(bytes.fromhex(sha256))
            yield PromptRow(
                index=index,
                place=row.place,
                sha256=sha256,
                occurrence=occurrence,
                messages=found.messages,
                answers=found.answers,
                tools=found.tools,
                id=_label(shapes.column(tree, "id")),
                kind=_label(shapes.column(tree, "kind")),
                extra={key: value for key, value in tree.items() if key not in shapes.known},
            )
            index += 1


def parse_row(raw: bytes) -> Mapping[str, Any]:
    """The text of a row as an object; DataError says what is wrong with it."""
    try:
        tree = orjson.loads(raw)
    except orjson.JSONDecodeError:
        tree = _parse_slowly(raw)
    if not isinstance(tree, dict):
        raise DataError(f"a row must be a JSON object, this one is {kind_of(tree)}")
    return tree


def _parse_slowly(raw: bytes) -> Any:
    """For what the fast parser refuses: NaN, half surrogates, and errors with their position."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        raise DataError(f"not UTF-8 (byte 0x{byte:02x} at column {error.start + 1})") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON ({error.msg} at column {error.pos + 1})") from None
    except RecursionError:
        raise DataError("not usable JSON (nested too deeply)") from None


def _label(value: Any) -> str | None:
    return None if value is None else str(value)


def _excerpt(content: bytes | Mapping[str, Any]) -> str:
    if isinstance(content, bytes):
        return content[: 4 * _EXCERPT_CHARS].decode("utf-8", "replace")[:_EXCERPT_CHARS]
    return json.dumps(dict(content), ensure_ascii=False, default=str)[:_EXCERPT_CHARS]
