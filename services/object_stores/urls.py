"""Addresses of object stores: `file:///folder` and `s3://bucket/prefix`, and what they may name.

An address carries no credentials: one that does is refused without repeating it. A `file://`
destination of a request must lie under an allowed root after every symbolic link is resolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote, urlsplit

from shared.errors import ForbiddenPathError, UserError

_BUCKET = re.compile(r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
MAX_KEY_BYTES = 1024


@dataclass(frozen=True)
class FileUrl:
    """A local folder."""

    path: Path

    def __str__(self) -> str:
        return "file://" + quote(str(self.path))


@dataclass(frozen=True)
class S3Url:
    """A bucket and a key prefix without slashes at its ends ('' for the whole bucket)."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def parse_store_url(url: str) -> FileUrl | S3Url:
    """The parts of an address; UserError says what is wrong with it."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise UserError("the destination is not a URL: use file:///folder or s3://bucket") from None
    if parts.username is not None or parts.password is not None:
        raise UserError(
            "the destination carries credentials: take them out of the URL and set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE"
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in unquote(url)):
        raise UserError("the destination holds a control character: remove it")
    if parts.query or parts.fragment:
        raise UserError(
            "the destination has a query or a fragment ('?' or '#'): give scheme, folder or bucket "
            "only, with such characters percent-encoded"
        )
    if parts.scheme == "file":
        if host not in ("", "localhost"):
            raise UserError(f"file://{host}/... names another host: write file:///folder")
        path = PurePosixPath(unquote(parts.path))
        if not path.is_absolute() or ".." in path.parts:
            raise UserError(
                f"{url!r} is not an absolute folder: write file:///folder, without '..'"
            )
        return FileUrl(Path(path))
    if parts.scheme == "s3":
        bucket = parts.netloc
        if not _BUCKET.match(bucket):
            raise UserError(f"{bucket!r} is not a bucket name: write s3://bucket/prefix")
        prefix = unquote(parts.path).strip("/")
        if prefix:
            check_key(prefix)
        return S3Url(bucket, prefix)
    given = f"{parts.scheme}:" if parts.scheme else url[:40]
    raise UserError(f"a destination starts with file:/// or s3://, not with {given!r}")


def check_key(key: str) -> str:
    """`key` when it is a plain relative path; UserError otherwise.

    Keys come from folders and from manifests that other people could have written, so one that
    climbs out of the store is refused here, for every store alike.
    """
    pieces = key.split("/")
    if (
        not key
        or any(piece in ("", ".", "..") for piece in pieces)
        or any(ord(character) < 32 or ord(character) == 127 for character in key)
        or len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES
    ):
        raise UserError(
            f"{key[:80]!r} is not a plain relative path: no empty parts, '.', '..', control "
            f"characters, and at most {MAX_KEY_BYTES} bytes"
        )
    return key


def ensure_allowed(url: str, roots: Iterable[Path]) -> None:
    """ForbiddenPathError unless a `file://` address lies under one of `roots`; s3 passes."""
    parsed = parse_store_url(url)
    if isinstance(parsed, S3Url):
        return
    resolved = parsed.path.resolve()
    allowed = [root.resolve() for root in roots]
    if not any(resolved.is_relative_to(root) for root in allowed):
        raise ForbiddenPathError(
            f"{parsed.path} is outside the folders that exports may go to "
            f"({', '.join(map(str, allowed))}): choose one below them, or start the control plane "
            "with --export-root"
        )
