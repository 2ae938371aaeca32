"""A JSON array of objects, record by record, from chunks of bytes.

    chunks -> buffer (from the record's first byte on) -> the record's end -> RawRow

A record's end is found in one of two ways. The quick one counts braces with the speed of a memory
search, ignoring strings, and believes the result only when the text up to there parses as one JSON
object, which nothing but the whole record can. The exact one walks over strings and braces, and is
taken when the quick one does not succeed. Invariants: what is held is one record and one chunk;
every whole record before a cut comes out; a record that is broken inside does not hide the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson

from services.data.raw.json_lines import MAX_ROW_BYTES
from services.data.raw.places import Place, RawRow, Unreadable
from services.data.raw.streams import Chunks
from shared.units import format_bytes

# A string (the group is empty when the buffer ends inside it), or what gives the text structure.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[\[\]{},]', re.DOTALL)
_SMALL_RECORD_BYTES = 2**12
_OPENING, _CLOSING, _COMMA, _QUOTE = b"[{", b"]}", 0x2C, 0x22


def json_array(
    chunks: Chunks, *, max_row_bytes: int = MAX_ROW_BYTES
) -> Iterator[RawRow | Unreadable]:
    """Records in order; the last item is Unreadable when the array does not end as it should."""
    return _ArrayReader(chunks, max_row_bytes).records()


class _ArrayReader:
    """`_buffer` begins at byte `_base` of the file; a record begins at `_start` in the buffer."""

    def __init__(self, chunks: Chunks, max_row_bytes: int) -> None:
        self._chunks, self._max_row_bytes = chunks, max_row_bytes
        self._source = iter(chunks)
        self._buffer, self._base, self._start = b"", 0, 0
        self._quick_bytes = 2**16  # how far the quick search goes
        self._number = 1  # of the record that is read now
        self._ended_at_depth = 0  # open brackets where the file ended

    def records(self) -> Iterator[RawRow | Unreadable]:
        while b"[" not in self._buffer:
            if not self._refill():
                return  # white space and nothing else
        self._start = self._buffer.index(b"[") + 1
        while True:
            quick = self._quick_record()
            if quick is not None:
                yield quick
                self._number += 1
                continue
            end = self._exact_end()
            if end is None:
                yield from self._cut_off()
                return
            text = self._buffer[self._start : end].strip()
            is_last = self._buffer[end] != _COMMA
            if text or not is_last or self._number > 1:
                yield RawRow(self._place(text), text)
                self._number += 1
            self._start = end + 1
            if is_last:
                yield from self._after_the_end()
                return

    def _quick_record(self) -> RawRow | None:
        """The record, where it lies in the buffer with the comma behind it and is sound."""
        buffer, depth = self._buffer, 0
        first = at = buffer.find(b"{", self._start)
        if first < 0 or buffer[self._start : first].strip():
            return None
        limit = first + self._quick_bytes
        while True:
            closing = buffer.find(b"}", at, limit)
            if closing < 0:
                return None
            depth += buffer.count(b"{", at, closing) - 1
            at = closing + 1
            if depth <= 0:
                break
        comma = buffer.find(b",", at)
        if depth < 0 or comma < 0 or buffer[at:comma].strip():
            return None
        try:
            content = orjson.loads(memoryview(buffer)[first:at])
        except orjson.JSONDecodeError:
            return None
        # Braces in texts that do not match would lead the search far astray: a few records at most.
        self._quick_bytes += (4 * (at - first) + _SMALL_RECORD_BYTES - self._quick_bytes) // 8
        place = Place(self._chunks.name, "record", self._number, self._base + first)
        self._start = comma + 1
        return RawRow(place, content)

    def _exact_end(self) -> int | None:
        """Where in the buffer the comma or bracket behind the record is; None: there is none."""
        scan, depth = self._start, 0
        while True:
            for token in _TOKEN.finditer(self._buffer, scan):
                kind = self._buffer[token.start()]
                if kind == _QUOTE:
                    if not token.group(1):
                        scan = token.start()
                        break
                elif kind in _OPENING:
                    depth += 1
                elif kind in _CLOSING:
                    depth -= 1
                    if depth < 0:
                        return token.start()
                elif depth == 0:
                    return token.start()
            else:
                scan = len(self._buffer)
            scan -= self._start
            if len(self._buffer) - self._start > self._max_row_bytes or not self._refill():
                self._ended_at_depth = depth
                return None

    def _refill(self) -> bool:
        """Drop what was read and append a chunk, False at the end of the file."""
        chunk = next(self._source, None)
        self._base += self._start
        self._buffer = self._buffer[self._start :] + (chunk or b"")
        self._start = 0
        return chunk is not None

    def _cut_off(self) -> Iterator[RawRow | Unreadable]:
        rest = self._buffer[self._start :]
        text = rest.strip()
        if len(rest) > self._max_row_bytes:
            yield Unreadable(
                self._place(text),
                f"longer than {format_bytes(self._max_row_bytes)}: a bracket or a quotation mark "
                "is missing before here, or this is no array of rows; the rest is not read",
                _excerpt(text),
            )
            return
        end = self._base + len(self._buffer)
        cause = f": {self._chunks.cut}" if self._chunks.cut else ""
        if self._ended_at_depth == 0 and text.endswith(b"}"):
            yield RawRow(self._place(text), text)
            self._number += 1
            text = b""
        if text:
            where = f"inside record {self._number}, which begins at byte {self._place(text).byte}"
        else:
            where = f"after record {self._number - 1}, before the closing ']'"
        problem = (
            f"the array is cut off: the file ends at byte {end} {where}{cause}; the "
            f"{self._number - 1} records before are whole"
        )
        place = self._place(text) if text else Place(self._chunks.name, "record", self._number, end)
        yield Unreadable(place, problem, _excerpt(text))

    def _after_the_end(self) -> Iterator[Unreadable]:
        """The array is closed; anything but white space behind it is an error."""
        while not (text := self._buffer[self._start :].strip()):
            if not self._refill():
                if self._chunks.cut is not None:
                    yield Unreadable(self._place(b""), self._chunks.cut)
                return
        yield Unreadable(
            self._place(text), "there is more text behind the end of the array", _excerpt(text)
        )

    def _place(self, text: bytes) -> Place:
        """The place of the record whose text is `text`; white space before it is passed over."""
        skipped = self._buffer.find(text[:1], self._start) - self._start if text else 0
        return Place(self._chunks.name, "record", self._number, self._base + self._start + skipped)


def _excerpt(text: bytes) -> str:
    return text[:200].decode("utf-8", "replace")
