"""What a control plane is started with: where it listens, where it keeps things, who may call."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from shared.errors import FieldError, UserError
from shared.layout import DataFolder

TOKEN_VARIABLE = "DFLASH_MESH_TOKEN"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Settings:
    """`token` None means calls need none, which `checked` allows on loopback only."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = field(default=None, repr=False)
    export_roots: Sequence[Path] = ()
    allowed_hosts: Sequence[str] = ()
    resume: bool = True
    max_active_runs: int = 4
    max_queued_runs: int = 200
    log_level: str = "info"
    max_stream_s: float = 3600.0  # an event stream ends then; browsers come back by themselves

    @property
    def folder(self) -> DataFolder:
        return DataFolder(self.data)

    @property
    def url(self) -> str:
        """Where workers of this machine reach the control plane."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def allowed_roots(self) -> tuple[Path, ...]:
        """Folders that file:// destinations must lie under, resolved."""
        return tuple(root.resolve() for root in (self.data, *self.export_roots))

    def checked(self) -> Settings:
        """These settings; UserError when they would open the control plane to anyone."""
        if self.token is None and not is_loopback(self.host):
            raise UserError(
                f"the control plane would listen on {self.host} without a token: set "
                f"{TOKEN_VARIABLE} to a long random word, or use --host 127.0.0.1",
                errors=[FieldError("host", "not a loopback address, and no token is set")],
            )
        if self.token is not None and not _is_visible_ascii(self.token):
            raise UserError(
                f"{TOKEN_VARIABLE} must consist of visible ASCII characters without spaces",
                errors=[FieldError("token", "has characters that a header cannot carry")],
            )
        return self

    def host_names(self) -> frozenset[str]:
        """Names that the Host header may carry, lower case and without port."""
        names = set(LOOPBACK_NAMES) | {name.lower() for name in self.allowed_hosts}
        if self.host in ("0.0.0.0", "::"):
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
            names |= {
                address.address.split("%")[0].lower()
                for addresses in psutil.net_if_addrs().values()
                for address in addresses
                if address.family in (socket.AF_INET, socket.AF_INET6)
            }
        else:
            names.add(self.host.lower())
        return frozenset(names)


def token_from_environment() -> str | None:
    """The token in DFLASH_MESH_TOKEN; None when it is unset or empty."""
    return os.environ.get(TOKEN_VARIABLE) or None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_visible_ascii(text: str) -> bool:
    return all("!" <= character <= "~" for character in text)
