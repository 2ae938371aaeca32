"""Kill every role and the control plane during a run: the drafter is the same bit for bit.

One run goes undisturbed, a second one of the same configuration loses generator, target_forward,
drafter_trainer, batcher, control plane and archiver to SIGKILL at fixed points of its progress.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.servers import Server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

RUN_LIMIT_S = 150.0
OVERRIDES = {
    "stages": ["generate", "tokenise", "train"],
    "data.num_prompts": 64,
    "data.held_out_share": 0.1,
    "generator.group_size": 16,
    "generator.max_new_tokens": 160,
    "batcher.segment_samples": 16,
    "target_forward.num_workers": 2,
    "trainer.checkpoint_every_steps": 15,
    "train.num_epochs": 3,
    "supervision.backoff_s": 0.1,
    "supervision.breaker_restarts": 50,
}
# (progress key, value at which it happens, who is killed)
KILLS = [
    ("completions_done", 16, "generator"),
    ("step", 5, "target_forward"),
    ("step", 20, "drafter_trainer"),
    ("step", 30, "batcher"),
    ("step", 40, "control_plane"),
    ("step", 50, "drafter_trainer"),
    ("step", 50, "archiver"),
]


@dataclass(frozen=True)
class Outcome:
    """What a run left: its drafter's digest, its series, its shards' digests, who was restarted."""

    drafter: str
    series: list[tuple[int, float, float]]
    shards: list[str]
    killed: list[str]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "data")
    started.start()
    yield started
    started.stop()


def run_job(server: Server, kills: list[tuple[str, int, str]]) -> Outcome:
    body = {"preset": "demo", "overrides": OVERRIDES}
    answer = httpx.post(server.url + "/v1/runs", json=body, timeout=30, trust_env=False)
    assert answer.status_code == 202, answer.text
    run_id = answer.json()["id"]
    left, killed = list(kills), []

    def ended() -> dict[str, Any] | None:
        run: dict[str, Any] = server.get(f"/v1/runs/{run_id}")
        while left and run["progress"][left[0][0]] >= left[0][1]:
            victim = left[0][2]
            if not kill(server, run_id, victim):
                break
            killed.append(victim)
            left.pop(0)
        return run if run["state"] in ("completed", "failed", "stopped", "blocked") else None

    run = server.wait(ended, "the run to end", RUN_LIMIT_S)
    assert run["state"] == "completed", run["reason"]
    folder = server.folder / "runs" / run_id
    newest = max(folder.glob("checkpoints/step_*/drafter/model.safetensors"))
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return Outcome(
        drafter=digest(newest),
        series=[(row["step"], row["loss"], row["grad_norm"]) for row in rows],
        shards=[digest(path) for path in sorted(folder.glob("dataset/*.arrow"))],
        killed=killed,
    )


def kill(server: Server, run_id: str, victim: str) -> bool:
    """SIGKILL one; False when no process of the role is there to be killed at this moment."""
    if victim == "control_plane":
        server.signal(signal.SIGKILL)
        server.forget()
        server.start()
        return True
    workers = server.get(f"/v1/workers?run_id={run_id}&live=true")["items"]
    pids = [w["pid"] for w in workers if w["role"] == victim]
    if not pids:
        return False
    os.kill(pids[0], signal.SIGKILL)
    return True


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_kills_leave_the_drafter_bit_for_bit(server: Server) -> None:
    undisturbed = run_job(server, [])
    disturbed = run_job(server, KILLS)
    assert disturbed.killed == [victim for *_, victim in KILLS]
    assert disturbed.shards == undisturbed.shards
    assert disturbed.series == undisturbed.series
    assert disturbed.drafter == undisturbed.drafter
