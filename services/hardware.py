"""What machine this is: the record kept with every run, and what `doctor` and `hardware` show.

Figures and versions only. No environment variable, no address, no user name is read, so the record
holds no secrets and can be exported. What a machine does not have, or does not tell, is null or an
empty list; a probe never fails because a tool is missing or broken.
"""

from __future__ import annotations

import csv
import io
import logging
import os
import platform
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

logger = logging.getLogger(__name__)

_NVIDIA_TIMEOUT_S = 15.0
_GPU_FIELDS = {
    "index": "index",
    "name": "name",
    "memory_mib": "memory.total",
    "driver": "driver_version",
    "compute_capability": "compute_cap",
    "power_limit_w": "power.limit",
    "pcie_generation": "pcie.link.gen.max",
    "pcie_width": "pcie.link.width.max",
}


def probe(folder: Path | None = None) -> dict[str, Any]:
    """The hardware and software record of this host; blocking, up to some seconds with GPUs.

    `folder`: whose disk is described (the working directory when None).
    """
    return {
        "recorded_at": time.time(),
        "host": platform.node(),
        "os": _operating_system(),
        "cpu": _cpu(),
        "memory": {
            "total_bytes": psutil.virtual_memory().total,
            "available_bytes": psutil.virtual_memory().available,
            "swap_bytes": psutil.swap_memory().total,
            "shm_bytes": _shm_bytes(),
        },
        "disk": _disk(folder or Path.cwd()),
        "gpus": _gpus(),
        "cuda_driver_version": _cuda_driver_version(),
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "packages": _packages(),
        },
    }


def summary(record: dict[str, Any]) -> str:
    """One line for people: '2 x NVIDIA H200 (141 GB), 16 CPUs, 128 GB RAM, Ubuntu 24.04'."""
    gpus = record["gpus"]
    names = sorted({gpu["name"] for gpu in gpus})
    gpu_text = ", ".join(f"{sum(gpu['name'] == name for gpu in gpus)} x {name}" for name in names)
    ram_gb = record["memory"]["total_bytes"] / 1e9
    parts = [
        gpu_text or "no GPU",
        f"{record['cpu']['model'] or record['cpu']['architecture']}",
        f"{record['cpu']['usable_cores']} CPU cores",
        f"{ram_gb:.0f} GB RAM",
        record["os"]["name"],
    ]
    return ", ".join(parts)


def num_gpus() -> int:
    """GPUs of this host, as its driver counts them; blocking."""
    return len(_gpus())


def _operating_system() -> dict[str, Any]:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        name = platform.system()
    return {"name": name, "kernel": platform.release()}


def _cpu() -> dict[str, Any]:
    frequency = psutil.cpu_freq()
    return {
        "model": _cpu_model(),
        "architecture": platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        # What this process may use, which a container or a batch system can limit.
        "usable_cores": _usable_cores(),
        "max_mhz": (frequency.max or None) if frequency else None,
    }


def _usable_cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return None


def _shm_bytes() -> int | None:
    try:
        return shutil.disk_usage("/dev/shm").total
    except OSError:
        return None


def _disk(folder: Path) -> dict[str, Any]:
    existing = folder.resolve()
    while not existing.exists():
        existing = existing.parent
    usage = shutil.disk_usage(existing)
    mounts = [
        partition
        for partition in psutil.disk_partitions(all=True)
        if existing.is_relative_to(partition.mountpoint)
    ]
    best = max(mounts, key=lambda partition: len(partition.mountpoint), default=None)
    return {
        "file_system": best.fstype if best else None,
        "total_bytes": usage.total,
        "free_bytes": usage.free,
    }


def _gpus() -> list[dict[str, Any]]:
    rows = _nvidia_smi(
        f"--query-gpu={','.join(_GPU_FIELDS.values())}", "--format=csv,noheader,nounits"
    )
    return [
        {name: _value(text) for name, text in zip(_GPU_FIELDS, row, strict=True)}
        for row in csv.reader(io.StringIO(rows or ""), skipinitialspace=True)
        if len(row) == len(_GPU_FIELDS)
    ]


def _value(text: str) -> str | float | int | None:
    """A figure where it is one; None for what the driver does not tell ('[N/A]')."""
    text = text.strip()
    if not text or text.startswith("["):
        return None
    if text.isdigit():
        return int(text)
    if text.count(".") == 1 and text.replace(".", "").isdigit():
        return float(text)
    return text


def _cuda_driver_version() -> str | None:
    """The newest CUDA that the driver supports, from the banner of nvidia-smi."""
    banner = _nvidia_smi() or ""
    _, found, rest = banner.partition("CUDA Version:")
    return rest.split()[0] if found and rest.split() else None


def _nvidia_smi(*arguments: str) -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, *arguments],
            capture_output=True,
            text=True,
            timeout=_NVIDIA_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("nvidia-smi does not answer (%s): no GPU figures", type(error).__name__)
        return None
    return done.stdout


def _packages() -> dict[str, str]:
    """Name and version of every installed distribution; nothing of where it came from."""
    found = {
        str(distribution.metadata["Name"]): distribution.version
        for distribution in metadata.distributions()
        if distribution.metadata["Name"]
    }
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))
