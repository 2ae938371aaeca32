"""Configuration from the command line: KEY=VALUE, and local paths made absolute for the server."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

_PATH_FIELDS = (("target", "path"), ("data", "prompts"), ("data", "dataset"))


def parse_override(text: str) -> tuple[str, Any]:
    """`trainer.lr=1e-3` -> ('trainer.lr', 0.001): the value as TOML, else as a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """All the KEY=VALUE of a command; local paths count from the current folder."""
    overrides = dict(map(parse_override, texts))
    for section, field in _PATH_FIELDS:
        value = overrides.get(f"{section}.{field}")
        if isinstance(value, str):
            overrides[f"{section}.{field}"] = _absolute_path(value, Path.cwd())
    return overrides


def from_folder(tree: dict[str, Any], base: Path) -> dict[str, Any]:
    """Local paths of a configuration file count from the file; the server has another folder."""
    for section, field in _PATH_FIELDS:
        inner = tree.get(section)
        if isinstance(inner, dict) and isinstance(inner.get(field), str):
            inner[field] = _absolute_path(inner[field], base)
    return tree


def _absolute_path(value: str, base: Path) -> str:
    if ":" in value.split("/")[0]:  # builtin:tiny, s3://...
        return value
    return str((base / Path(value).expanduser()).resolve())
