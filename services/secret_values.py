"""Secrets that this process knows, so that they can be kept out of what leaves it.

A secret is the value of an environment variable whose name says so (..._KEY, ..._TOKEN,
..._SECRET, ..._PASSWORD, ...), or a value in the AWS credentials file. Values are never logged,
compared with anything but text that is about to leave, or kept longer than the caller keeps them.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

REPLACEMENT = b"[redacted]"
_MIN_SECRET_CHARACTERS = 8
_SECRET_NAME = re.compile(
    r"(^|_)(KEY|KEY_ID|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|WEBHOOK|"
    r"WEBHOOK_URL)$",
    re.IGNORECASE,
)
_FILE_OPTIONS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


def known_secrets(
    environment: Mapping[str, str] | None = None, *, names: Iterable[str] = ()
) -> tuple[bytes, ...]:
    """Secret values, longest first; `names` are further variables that hold one."""
    given = os.environ if environment is None else environment
    also = set(names)
    values = {
        value.strip()
        for name, value in given.items()
        if (name in also or _SECRET_NAME.search(name)) and not _is_path(value)
    }
    values |= _aws_file_values(given)
    # A key of several lines (PEM) is looked for line by line, as text is read.
    lines = {line.strip() for value in values for line in value.splitlines()}
    usable = [line.encode() for line in lines if len(line) >= _MIN_SECRET_CHARACTERS]
    return tuple(sorted(usable, key=lambda value: (-len(value), value)))


def redact(data: bytes, secrets: Iterable[bytes]) -> bytes:
    """`data` with every secret replaced; also in the form that JSON gives it."""
    for secret in secrets:
        data = data.replace(secret, REPLACEMENT)
        escaped = _json_form(secret)
        if escaped != secret:
            data = data.replace(escaped, REPLACEMENT)
    return data


def contains_secret(data: bytes, secrets: Iterable[bytes]) -> bool:
    """Whether any secret occurs in `data`."""
    return any(secret in data or _json_form(secret) in data for secret in secrets)


def _json_form(secret: bytes) -> bytes:
    return secret.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _is_path(value: str) -> bool:
    # SSL_KEY and the like may name a file; its name is no secret.
    return value.startswith("/") and Path(value).exists()


def _aws_file_values(environment: Mapping[str, str]) -> set[str]:
    given = environment.get("AWS_SHARED_CREDENTIALS_FILE")
    path = Path(given) if given else Path(environment.get("HOME", "/")) / ".aws" / "credentials"
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return set()  # a file that cannot be read gives this process no secrets to leak
    return {
        parser.get(section, option).strip()
        for section in parser.sections()
        for option in _FILE_OPTIONS
        if parser.has_option(section, option)
    }
