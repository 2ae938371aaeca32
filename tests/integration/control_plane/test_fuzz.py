"""schemathesis against the whole interface: nothing that its schema allows, or forbids, may break
the server or get an answer that the OpenAPI document does not describe.

The launcher starts nothing and exports go to a temporary root. A token is set, so that calls
without one are tried too; event streams end after a moment instead of an hour. One pass makes ids
up, the other uses those of a real run, export and worker.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from control_plane.app import create_app
from control_plane.server import listen
from control_plane.settings import Settings
from tests.helpers.idle_launcher import IdleLauncher

TOKEN = "fuzz-token"
LIMIT_S = 120  # a pass takes ten seconds of a machine that has nothing else to do
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
# A body that the schema allows may still name files that are not there, a preset that is none, or
# a key that was used before.
CONFIG = """
[checks]
positive_data_acceptance.expected-statuses = [
    "2xx", "400", "401", "403", "404", "409", "422", "502",
]
"""


@contextmanager
def served(settings: Settings) -> Iterator[str]:
    """The app under a real uvicorn in a thread of its own; its address."""
    sock = listen("127.0.0.1", 0)
    app = create_app(settings, IdleLauncher())
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def post(url: str, body: dict[str, Any] | None = None) -> Any:
    response = httpx.post(url, json=body, headers=HEADERS, trust_env=False, timeout=30)
    assert response.status_code < 300, response.text
    return response.json()


def real_ids(url: str) -> str:
    """A run, an export of it and a worker of it, as schemathesis parameters."""
    body = {"preset": "demo", "overrides": {"data.num_prompts": 12}}
    run_id = post(f"{url}/v1/runs", body)["id"]
    export_id = post(f"{url}/v1/runs/{run_id}/exports", {"include": ["metadata"]})["id"]
    registration = {
        "run_id": run_id,
        "role": "batcher",
        "rank": 0,
        "incarnation": "0123456789",
        "host": "here",
        "pid": 1,
        "pid_birth": "boot/1",
    }
    worker_id = post(f"{url}/v1/workers", registration)["worker_id"]
    return (
        f'[parameters]\n"path.run_id" = "{run_id}"\n"path.export_id" = "{export_id}"\n'
        f'"path.worker_id" = "{worker_id}"\n'
    )


def run_schemathesis(
    url: str, folder: Path, phases: str, options: Sequence[str]
) -> tuple[int, str]:
    """Exit code and output; whatever it started is ended with it."""
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        *("run", f"{url}/openapi.json"),
        *("--header", f"Authorization: Bearer {TOKEN}"),
        *("--phases", phases),
        *("--checks", "all", "--max-examples", "8", "--seed", "20260206"),
        *("--generation-database", "none", "--suppress-health-check", "all", "--no-color"),
        *options,
    ]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "NO_PROXY": "*"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    return process.returncode, output


@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize(
    ("ids", "phases", "options"),
    [
        ("made up", "coverage", ()),
        ("real", "coverage,fuzzing", ()),
        # To delete an export is to cancel it: it stays to be looked at, which the check that
        # nothing is used after it was deleted cannot know.
        ("real", "stateful", ("--exclude-operation-id", "cancel_export")),
    ],
)
def test_schemathesis_finds_nothing(
    tmp_path: Path, ids: str, phases: str, options: tuple[str, ...]
) -> None:
    settings = Settings(
        data=tmp_path / "data",
        token=TOKEN,
        export_roots=[tmp_path / "exports"],
        max_stream_s=0.02,
        max_active_runs=2,
    )
    with served(settings) as url:
        parameters = real_ids(url) if ids == "real" else ""
        (tmp_path / "schemathesis.toml").write_text(CONFIG + parameters)
        code, output = run_schemathesis(url, tmp_path, phases, options)
    assert code == 0, output[-12000:]
    counts = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", output)
    assert counts is not None, output[-4000:]
    selected, total, tested = map(int, counts.groups())
    assert total - selected == len(options) // 2
    assert tested == selected or phases == "stateful", output[-4000:]
