"""Figures for people: bytes, tokens per second, durations. Inside, everything is SI base units."""

from __future__ import annotations

_BYTE_STEPS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def format_bytes(num_bytes: float) -> str:
    """`1234567` -> `1.23 MB` (decimal units)."""
    for name, size in _BYTE_STEPS:
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.2f} {name}"
    return f"{num_bytes:.0f} B"


def format_rate(tokens_per_s: float) -> str:
    """`15100.0` -> `15.1 Ktok/s`."""
    return (
        f"{tokens_per_s / 1000:.1f} Ktok/s" if tokens_per_s >= 100 else f"{tokens_per_s:.0f} tok/s"
    )


def format_duration(seconds: float) -> str:
    """`3725` -> `1 h 02 min`; `75` -> `1 min 15 s`; `8.25` -> `8.2 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02d} h"
