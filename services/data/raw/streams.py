"""Files as chunks of unpacked bytes: gzip and zstd are told by their first bytes.

    SourceFile.open -> [gzip | zstd] -> Chunks (at most about 1 MiB each)

A packed stream that ends too early gives everything up to there, then `Chunks.cut` says so. One
that is damaged is a DataError at once: what came out before cannot be trusted.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import IO, BinaryIO, Literal

import pyarrow as pa

from services.data.raw.trees import SourceFile
from services.files import disk_faults
from shared.errors import DataError

CHUNK_BYTES = 2**20
# Arrow gives nothing of a read that meets the end of a cut stream, so reads of zstd are small.
_ZSTD_READ_BYTES = 2**16
Packing = Literal["gzip", "zstd"]
_PACKED: dict[bytes, Packing] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_NAMES: dict[str, Packing] = {".gz": "gzip", ".zst": "zstd"}
_UNREAD = {
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PK\x03\x04": "zip",
    b"\x04\x22\x4d\x18": "lz4",
    b"7z\xbc\xaf": "7z",
}


class Chunks:
    """The unpacked bytes of one file, once. `cut` is set when the packed stream ended too early."""

    def __init__(self, name: str, source: Iterator[bytes]) -> None:
        self.name = name
        self.cut: str | None = None
        self._source = source

    def prepend(self, taken: list[bytes], rest: Iterator[bytes]) -> None:
        """Give `taken` again before `rest`, which an earlier iteration has left over."""
        self._source = chain(taken, rest)

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._source
        except _CutStream as error:
            self.cut = str(error)


class _CutStream(Exception):
    """The packed stream has no end."""


def packing_of(file: SourceFile, handle: BinaryIO) -> Packing | None:
    """How an open file is packed; DataError for packings that are not read. Position is reset."""
    head = handle.read(8)
    handle.seek(0)
    for magic, name in _UNREAD.items():
        if head.startswith(magic):
            raise DataError(f"{file.name} is packed with {name}: unpack it, or use gzip or zstd")
    found = next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)
    expected = _NAMES.get(file.name[file.name.rfind(".") :])
    if expected is not None and head and found != expected:
        raise DataError(
            f"{file.name} is named like a {expected} file but its content is not {expected}: give "
            "it its right name, or fetch it again"
        )
    return found


def unpacked(file: SourceFile, handle: BinaryIO, packing: Packing | None) -> Chunks:
    """The bytes of an open file without its packing."""
    if packing == "gzip":
        source = _gunzip(file.name, _plain(handle))
    elif packing == "zstd":
        source = _unzstd(file.name, handle)
    else:
        source = _plain(handle)
    return Chunks(file.name, source)


@contextmanager
def seekable(file: SourceFile, chunks: Chunks) -> Iterator[IO[bytes]]:
    """A temporary file with all that `chunks` gives, for formats that are read with jumps."""
    with tempfile.TemporaryFile() as copy, disk_faults(tempfile.gettempdir()):
        for chunk in chunks:
            copy.write(chunk)
        if chunks.cut is not None:
            raise DataError(f"{file.name}: {chunks.cut}; a table cannot be read without its end")
        copy.seek(0)
        yield copy


def _plain(handle: BinaryIO) -> Iterator[bytes]:
    while chunk := handle.read(CHUNK_BYTES):
        yield chunk


def _gunzip(name: str, source: Iterator[bytes]) -> Iterator[bytes]:
    """All members of a gzip file, one after the other."""
    member, num_packed = zlib.decompressobj(wbits=31), 0
    try:
        for packed in source:
            num_packed += len(packed)
            data, is_full = packed, False
            while data or is_full:
                if member.eof:
                    data, is_full = data.lstrip(b"\0"), False  # padding between members
                    if data:
                        member = zlib.decompressobj(wbits=31)
                    continue
                chunk = member.decompress(data, CHUNK_BYTES)
                # A full chunk may leave more inside the decompressor, even without input.
                is_full = len(chunk) == CHUNK_BYTES
                if chunk:
                    yield chunk
                data = member.unused_data if member.eof else member.unconsumed_tail
    except zlib.error as error:
        raise DataError(
            f"{name} is damaged: the gzip stream cannot be unpacked near its byte {num_packed} "
            f"({error}); fetch it again"
        ) from None
    if not member.eof and num_packed:
        raise _CutStream(f"the gzip stream is cut off after {num_packed} packed bytes")


def _unzstd(name: str, handle: BinaryIO) -> Iterator[bytes]:
    num_unpacked = 0
    with pa.CompressedInputStream(pa.PythonFile(handle, "r"), "zstd") as stream:
        while True:
            try:
                chunk = stream.read(_ZSTD_READ_BYTES)
            except OSError as error:
                if "runcated" in str(error):
                    raise _CutStream(
                        f"the zstd stream is cut off: it holds {num_unpacked} whole bytes"
                    ) from None
                raise DataError(
                    f"{name} is damaged: the zstd stream cannot be unpacked behind its unpacked "
                    f"byte {num_unpacked} ({error}); fetch it again"
                ) from None
            if not chunk:
                return
            num_unpacked += len(chunk)
            yield chunk
