"""From a preset, a TOML file and dotted overrides to a `RunConfig`, or to every error at once.

Merge order: preset, then the given tree, then the overrides. A wrong key is reported with its
dotted path and the key that was most likely meant.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from shared.config.schema import RunConfig
from shared.errors import ConfigError, FieldError


def preset_names() -> list[str]:
    """Names of the packaged presets, sorted."""
    folder = resources.files("shared") / "presets"
    return sorted(f.name[: -len(".toml")] for f in folder.iterdir() if f.name.endswith(".toml"))


def load_preset(name: str) -> dict[str, Any]:
    """The tree of a packaged preset; ConfigError names the closest one when there is none."""
    names = preset_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        raise ConfigError(
            f"there is no preset {name!r}; presets: {', '.join(names)}",
            errors=[FieldError("preset", f"unknown preset {name!r}", close[0] if close else None)],
        )
    return tomllib.loads(
        (resources.files("shared") / "presets" / f"{name}.toml").read_text("utf-8")
    )


def parse_config(text: str, *, source: str = "configuration") -> dict[str, Any]:
    """A TOML document as a tree; ConfigError says where it cannot be read."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from error


def resolve_config(
    tree: Mapping[str, Any] | None = None,
    *,
    preset: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Merge and validate; ConfigError lists every wrong field with a suggestion."""
    merged, problems = merge(tree, preset=preset, overrides=overrides)
    try:
        config = RunConfig.model_validate(merged)
    except ValidationError as error:
        problems.extend(_field_error(item) for item in error.errors(include_url=False))
    if problems:
        count = f"{len(problems)} field{'s' if len(problems) > 1 else ''}"
        raise ConfigError(f"the configuration has {count} to correct", errors=problems)
    return config


def merge(
    tree: Mapping[str, Any] | None = None,
    *,
    preset: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[FieldError]]:
    """The merged tree, not validated, and the overrides that do not fit into it.

    ConfigError for an unknown preset.
    """
    merged: dict[str, Any] = load_preset(preset) if preset else {}
    _merge(merged, tree or {})
    problems: list[FieldError] = []
    for path, value in (overrides or {}).items():
        _assign(merged, path, value, problems)
    return merged, problems


def config_sha256(config: RunConfig) -> str:
    """Hex digest of the canonical JSON of the resolved configuration."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _merge(base: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for key, value in extra.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = copy.deepcopy(value)


def _assign(tree: dict[str, Any], path: str, value: Any, problems: list[FieldError]) -> None:
    *parents, last = path.split(".")
    node = tree
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            problems.append(FieldError(path, f"{parent!r} is a value, not a table"))
            return
        node = child
    node[last] = value


def _field_error(item: Mapping[str, Any]) -> FieldError:
    path = ".".join(str(part) for part in item["loc"]) or "configuration"
    if item["type"] == "extra_forbidden":
        return FieldError(path, "unknown key", _suggestion(item["loc"]))
    message = item["msg"].removeprefix("Value error, ")
    return FieldError(path, message[0].lower() + message[1:] if message else "not valid")


def _suggestion(loc: tuple[Any, ...]) -> str | None:
    """The key that was most likely meant: of this name in another table, or spelt like it here."""
    *table, key = (str(part) for part in loc)
    tables = dict(_tables(RunConfig))
    elsewhere = [".".join((*path, key)) for path, keys in tables.items() if key in keys]
    if len(elsewhere) == 1:
        return elsewhere[0]
    close = difflib.get_close_matches(key, tables.get(tuple(table), []), n=1, cutoff=0.5)
    return close[0] if close else None


def _tables(
    model: type[BaseModel], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Every table of the configuration by its path, with its keys."""
    yield path, list(model.model_fields)
    for name, field in model.model_fields.items():
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _tables(inner, (*path, name))
