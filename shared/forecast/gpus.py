"""The table of accelerators in gpus.toml, as typed rows."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from shared.errors import ConfigError, FieldError


@dataclass(frozen=True)
class Gpu:
    """One accelerator; `bf16_tflops` is the dense data-sheet figure."""

    name: str
    title: str
    bf16_tflops: float
    memory_gb: float
    bandwidth_gb_s: float
    usd_per_hour: float


@cache
def gpu_table() -> dict[str, Gpu]:
    """Every accelerator of the table, by name."""
    text = (resources.files("shared.forecast") / "gpus.toml").read_text("utf-8")
    return {name: Gpu(name=name, **row) for name, row in tomllib.loads(text)["gpu"].items()}


def gpu_named(name: str) -> Gpu:
    """One accelerator; ConfigError with the closest name when it is not in the table."""
    table = gpu_table()
    if name not in table:
        close = difflib.get_close_matches(name, table, n=1)
        raise ConfigError(
            f"there is no accelerator {name!r} in the table: {', '.join(sorted(table))}",
            errors=[FieldError("gpu", f"unknown {name!r}", close[0] if close else None)],
        )
    return table[name]
