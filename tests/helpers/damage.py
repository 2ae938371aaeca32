"""What ageing disks do to files."""

from __future__ import annotations

from pathlib import Path


def flip_bit(path: Path, at: int | None = None) -> None:
    """Flip one bit of a byte, in the middle of the file unless told."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 4
    path.write_bytes(data)
