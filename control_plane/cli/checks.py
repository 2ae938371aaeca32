"""`doctor`: whether this machine can run a mesh, and what to do where it cannot.

Each check is a function that returns a `Finding`; the list at the end is the order they are shown
in. Nothing is changed, and no torch is loaded in this process.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import click

from control_plane.cli.command import EXIT_FAILED, as_json
from control_plane.cli.output import emit_json
from control_plane.open_files import ENOUGH, reachable_limit
from shared.layout import DataFolder
from shared.units import format_bytes

Level = Literal["ok", "warning", "error"]
LOW_DISK_BYTES = 5 * 10**9
LOW_SHM_BYTES = 256 * 2**20
TORCH_PROBE = (
    "import json, torch; print(json.dumps([torch.__version__, torch.cuda.is_available(), "
    "[torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]]))"
)


@dataclass(frozen=True)
class Finding:
    """One check's outcome; `remedy` says what to do when it is not ok."""

    name: str
    level: Level
    detail: str
    remedy: str | None = None


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("dflash-mesh-data"),
    show_default=True,
    help="Data folder that `up` would use.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True)
@as_json
def doctor(data: Path, port: int, json_: bool) -> int:
    """Check Python, packages, GPU, disk, shared memory, ports and the database."""
    checks: tuple[Callable[[], Finding], ...] = (
        check_python,
        check_packages,
        check_torch,
        lambda: check_data_folder(data),
        lambda: check_disk(data),
        lambda: check_database(DataFolder(data).database),
        check_shared_memory,
        check_open_files,
        lambda: check_port(port),
        check_credentials,
    )
    findings = [check() for check in checks]
    if json_:
        emit_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            click.echo(f"{finding.level:8} {finding.name:15} {finding.detail}")
            if finding.remedy:
                click.echo(f"{'':24} -> {finding.remedy}")
    return EXIT_FAILED if any(finding.level == "error" for finding in findings) else 0


def check_python() -> Finding:
    text = f"{sys.version.split()[0]} at {sys.executable}"
    return Finding("python", "ok", text)


def check_packages() -> Finding:
    names = ("fastapi", "transformers", "pyzmq", "sqlmodel", "aiobotocore", "httpx", "pyarrow")
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        remedy = "install dflash-mesh again into this environment"
        return Finding("packages", "error", f"missing: {', '.join(missing)}", remedy)
    return Finding("packages", "ok", ", ".join(found))


def check_torch() -> Finding:
    """torch is imported by another process: the control plane's own never does."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", TORCH_PROBE], capture_output=True, text=True, timeout=120
        )
        torch_version, has_cuda, names = json.loads(probe.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        remedy = "run `python -c 'import torch'` in this environment and follow its message"
        return Finding("torch", "error", "torch cannot be imported", remedy)
    if not has_cuda:
        remedy = "fine for the demo; real targets need a CUDA build of torch and a driver"
        return Finding("torch", "warning", f"{torch_version}, no CUDA device", remedy)
    return Finding("torch", "ok", f"{torch_version} with {', '.join(names)}")


def check_data_folder(data: Path) -> Finding:
    place = data if data.exists() else _existing_parent(data)
    if not os.access(place, os.W_OK | os.X_OK):
        remedy = f"make {place} writable for this user, or name another folder with --data"
        return Finding("data folder", "error", f"{place} is not writable", remedy)
    return Finding("data folder", "ok", f"{data.resolve()} is writable")


def check_disk(data: Path) -> Finding:
    free = shutil.disk_usage(_existing_parent(data)).free
    if free < LOW_DISK_BYTES:
        remedy = "`dflash-mesh plan` says what a run will write"
        return Finding("disk", "warning", f"{format_bytes(free)} free", remedy)
    return Finding("disk", "ok", f"{format_bytes(free)} free")


def check_database(path: Path) -> Finding:
    if not path.exists():
        return Finding("database", "ok", "none yet; `up` makes it")
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
        try:
            result = connection.execute("PRAGMA integrity_check").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        result = str(error)
    if result != "ok":
        remedy = "stop the control plane and put back a copy from DATA/backups"
        return Finding("database", "error", f"{path}: {result}", remedy)
    return Finding("database", "ok", f"{path}: integrity check passed")


def check_shared_memory() -> Finding:
    place = Path("/dev/shm")
    if not place.is_dir():
        remedy = "links fall back to zmq frames, which is slower"
        return Finding("shared memory", "warning", "/dev/shm does not exist", remedy)
    free = shutil.disk_usage(place).free
    if free < LOW_SHM_BYTES:
        remedy = "raise it (in a container: --shm-size=8g), or set links.plane = 'zmq'"
        return Finding("shared memory", "warning", f"{format_bytes(free)} free", remedy)
    return Finding("shared memory", "ok", f"{format_bytes(free)} free in /dev/shm")


def check_open_files() -> Finding:
    limit = reachable_limit()  # `up` raises the soft limit itself
    if limit < ENOUGH:
        remedy = f"raise the hard limit of this user: ulimit -Hn {ENOUGH}"
        return Finding("open files", "warning", f"at most {limit}", remedy)
    return Finding("open files", "ok", f"at most {limit}")


def check_port(port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            remedy = "a control plane may run there already; else choose another with --port"
            return Finding("port", "warning", f"{port} cannot be used: {error.strerror}", remedy)
    return Finding("port", "ok", f"{port} is free")


def check_credentials() -> Finding:
    """Only whether they are there; never their values."""
    places = [name for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID") if os.environ.get(name)]
    if (Path.home() / ".aws" / "credentials").exists():
        places.append("~/.aws/credentials")
    detail = f"found in {', '.join(places)}" if places else "none; only needed for s3://"
    return Finding("S3 credentials", "ok", detail)


def _existing_parent(path: Path) -> Path:
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path


def register(root: click.Group) -> None:
    root.add_command(doctor)
