"""vLLM's CPU build as a test server: started, asked, measured, stopped.

It runs in `.venv-serving` (see tests/environment/serving.sh). Output ids come from
`return_token_ids`, draft counts from its Prometheus page.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-serving" / "bin" / "python"
START_LIMIT_S = 240.0
_COUNTERS = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted",
}


@dataclass(frozen=True)
class VllmServer:
    """A running server; `client` points at it."""

    client: httpx.Client

    def greedy(self, prompt_ids: Sequence[int], max_tokens: int) -> list[int]:
        """The server's greedy answer as token ids, end-of-text included."""
        body = {
            "model": "target",
            "prompt": list(prompt_ids),
            "max_tokens": max_tokens,
            "temperature": 0,
            "return_token_ids": True,
        }
        answer = self.client.post("/v1/completions", json=body)
        answer.raise_for_status()
        return list(answer.json()["choices"][0]["token_ids"])

    def acceptance_length(self) -> float:
        """1 + accepted / drafts over everything served so far."""
        counts = dict.fromkeys(_COUNTERS.values(), 0.0)
        for line in self.client.get("/metrics").text.splitlines():
            name, _, rest = line.partition("{")
            if name in _COUNTERS:
                counts[_COUNTERS[name]] += float(rest.rsplit(" ", 1)[1])
        return 1 + counts["accepted"] / counts["drafts"]


@contextmanager
def vllm_server(
    target: Path, log: Path, port: int, *, drafter: Path | None = None, num_drafts: int = 0
) -> Iterator[VllmServer]:
    """Serve `target` in float32, with `drafter` when one is given."""
    command = [
        *(str(PYTHON), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(target), "--served-model-name", "target"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--max-model-len", "1024", "--max-num-seqs", "8"),
        *("--no-enable-prefix-caching", "--enforce-eager"),
    ]
    if drafter is not None:
        speculative = (
            f'{{"method": "dflash", "model": "{drafter}", "num_speculative_tokens": {num_drafts}}}'
        )
        command += ["--speculative-config", speculative]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "2",
    }
    environment.pop("PYTHONPATH", None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False
        ) as client:
            _wait(client, process, log)
            yield VllmServer(client)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"vLLM did not start:\n{log.read_text('utf-8', 'replace')[-3000:]}")
