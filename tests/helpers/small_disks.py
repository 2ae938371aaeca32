"""A file system of a few hundred kilobytes, where the machine allows to mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted_small_disk(mount: Path, num_bytes: int) -> Iterator[Path]:
    """A tmpfs of `num_bytes` at `mount`; skips the test where mounting is not allowed."""
    mount.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(mount)],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def resize(mount: Path, num_bytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={num_bytes}", str(mount)], check=True)


def fill(mount: Path, *, leave_bytes: int) -> Path:
    """Use the disk up but for `leave_bytes`; the file that does it."""
    status = os.statvfs(mount)
    ballast = mount / "ballast"
    ballast.write_bytes(b"\0" * max(0, status.f_bavail * status.f_bsize - leave_bytes))
    return ballast
