"""A real OpenAI-compatible server on a CPU: `transformers serve` with the tiny target."""

import contextlib
import os
import subprocess
import sys

import httpx
import pytest

from services.data.tokenizer import TargetTokenizer
from services.embedded_engine import EmbeddedEngine
from services.generation import SamplingParameters
from services.servers.launch import free_ports
from shared.tiny_target import model_folder
from tests.helpers.completion_logs import read_log
from tests.helpers.mesh_contexts import Workplace, tiny_config
from tests.helpers.server_peers import run_generator

FOLDER = model_folder()
NUM_PROMPTS = 6
MAX_NEW_TOKENS = 120


@pytest.fixture
def url(tmp_path):
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(FOLDER)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    with (
        (tmp_path / "serve.log").open("wb") as log,
        subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        ) as process,
    ):
        try:
            transport = httpx.HTTPTransport(retries=0)
            with httpx.Client(transport=transport, trust_env=False, timeout=2) as client:
                while process.poll() is None:
                    with contextlib.suppress(httpx.TransportError):
                        if client.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                            break
            assert process.poll() is None, (tmp_path / "serve.log").read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.mark.timeout(120)
async def test_a_run_generated_by_transformers_serve_is_what_our_engine_generates(tmp_path, url):
    config = tiny_config(
        {
            "generator.engine": "openai",
            "generator.openai.urls": [url],
            "generator.temperature": 0.0,
            "generator.max_new_tokens": MAX_NEW_TOKENS,
            "generator.concurrency": 2,
            "data.num_prompts": NUM_PROMPTS,
        }
    )
    context, task = await run_generator(Workplace(tmp_path, config))
    assert task.exception() is None
    log = read_log(context.folder)
    assert len(log) == context.progress["completions_total"] and log
    tokenizer = TargetTokenizer.load(FOLDER)
    engine = EmbeddedEngine.load(FOLDER, dtype="float32", device="cpu", num_threads=1)
    sampling = SamplingParameters(MAX_NEW_TOKENS, 0.0, 1.0, tokenizer.eos_ids)
    own = engine.generate([one.prompt_ids for one in log], [0] * len(log), sampling)
    for one, expected in zip(log, own, strict=True):
        assert one.sampling["retokenised"] is True
        assert (one.output_ids, one.finish_reason) == (
            expected.output_ids,
            expected.finish_reason,
        )
    assert {one.finish_reason for one in log} >= {"stop"}
