"""Who is at an end of a link, what it grants, and how long it waits.

The host identity says whether two ends can share memory: same boot, same host name, same
`/dev/shm` mount (containers on one machine have mounts of their own) and same user.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.errors import EnvironmentFault

Plane = Literal["auto", "shm", "zmq"]
SHM_FOLDER = Path("/dev/shm")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_RUN_ID = re.compile(r"^[A-Za-z0-9][\w.+-]*$")
_INCARNATION = re.compile(r"^[A-Za-z0-9_]+$")  # no dash: it separates parts of a segment's name


@dataclass(frozen=True)
class LinkIdentity:
    """One incarnation of one worker of one run.

    Raises ValueError when `run_id` or `incarnation` could not be part of a file name.
    """

    run_id: str
    worker_id: str
    role: str
    rank: int
    incarnation: str

    def __post_init__(self) -> None:
        if not _RUN_ID.match(self.run_id):
            raise ValueError(f"run id {self.run_id!r} is not letters, digits and .+-_ only")
        if not _INCARNATION.match(self.incarnation):
            raise ValueError(f"incarnation {self.incarnation!r} is not letters, digits and _ only")

    def __str__(self) -> str:
        return f"{self.role}-{self.rank} (incarnation {self.incarnation})"


@dataclass(frozen=True)
class LinkLimits:
    """Credit that the receiving end grants a peer: messages and frame bytes not yet released."""

    max_messages: int
    max_bytes: int

    def __post_init__(self) -> None:
        if self.max_messages < 1 or self.max_bytes < 1:
            raise ValueError(
                f"a link needs credit for at least one message and one byte, not "
                f"{self.max_messages} messages and {self.max_bytes} bytes"
            )


@dataclass(frozen=True)
class LinkTimeouts:
    """`silence_s` is long because a busy worker may hold its event loop; a process that died is
    noticed within about two `ping_s` by its closed connection."""

    hello_s: float = 10.0
    ping_s: float = 0.5
    silence_s: float = 30.0
    linger_s: float = 5.0


def host_identity() -> str:
    """Equal at two processes exactly when they can open each other's shared-memory files."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "no-boot-id"
    mount = SHM_FOLDER.stat().st_dev if SHM_FOLDER.is_dir() else "no-shm"
    return f"{boot}:{socket.gethostname()}:{mount}:{os.getuid()}"


def require_plane(plane: Plane) -> None:
    """Raises EnvironmentFault when `plane` needs shared memory and this host has none."""
    if plane == "shm" and not SHM_FOLDER.is_dir():
        raise EnvironmentFault(
            f"links.plane is 'shm' but {SHM_FOLDER} does not exist on this host: set links.plane "
            "to 'auto' or 'zmq', or mount a tmpfs there"
        )


def choose_plane(here: Plane, there: Plane, *, same_host: bool) -> Literal["shm", "zmq"]:
    """The plane of a channel; ValueError when one end insists on memory it cannot share."""
    if "shm" in (here, there) and not same_host:
        raise ValueError(
            "links.plane is 'shm' but the two ends do not share a host, a /dev/shm mount and a "
            "user: set links.plane to 'auto' or 'zmq'"
        )
    if "zmq" in (here, there) or not same_host or not SHM_FOLDER.is_dir():
        return "zmq"
    return "shm"
