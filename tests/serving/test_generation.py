"""A generator fed by vLLM: token ids in, token ids out, the same as our own engine's."""

from pathlib import Path

import pytest

from services.data.tokenizer import TargetTokenizer
from services.embedded_engine import EmbeddedEngine
from services.generation import SamplingParameters
from services.servers.launch import free_ports
from shared.tiny_target import model_folder
from tests.helpers.completion_logs import read_log
from tests.helpers.mesh_contexts import Workplace, tiny_config
from tests.helpers.server_peers import run_generator
from tests.serving.vllm_server import PYTHON, vllm_server

pytestmark = pytest.mark.serving

FOLDER = model_folder()
MAX_NEW_TOKENS = 120


async def test_a_run_generated_by_vllm(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.fail("run `make test-serving`: it makes the environment with vLLM's CPU build")
    with vllm_server(FOLDER, tmp_path / "vllm.log", free_ports(1)[0]) as server:
        config = tiny_config(
            {
                "generator.engine": "openai",
                "generator.openai.urls": [str(server.client.base_url)],
                "generator.openai.model": "target",
                "generator.temperature": 0.0,
                "generator.max_new_tokens": MAX_NEW_TOKENS,
                "data.num_prompts": 24,
            }
        )
        context, task = await run_generator(Workplace(tmp_path, config))
    assert task.exception() is None
    log = read_log(context.folder)
    assert len(log) == context.progress["completions_total"] and log
    assert "server_0_running" in context.metrics
    tokenizer = TargetTokenizer.load(FOLDER)
    engine = EmbeddedEngine.load(FOLDER, dtype="float32", device="cpu", num_threads=1)
    sampling = SamplingParameters(MAX_NEW_TOKENS, 0.0, 1.0, tokenizer.eos_ids)
    own = engine.generate([one.prompt_ids for one in log], [0] * len(log), sampling)
    assert [one.output_ids for one in log] == [one.output_ids for one in own]
    assert [one.finish_reason for one in log] == [one.finish_reason for one in own]
    assert not any(one.sampling.get("retokenised") for one in log)
