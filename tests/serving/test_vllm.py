"""A real server loads the exported drafter and drafts as well as our own speculative decoding.

The demo runs once (or DFLASH_MESH_DEMO names a folder it left), then vLLM serves its target plain,
with the exported drafter, and with a copy whose captured layers are permuted.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.data.tokenizer import TargetTokenizer
from shared.dflash.acceptance import AcceptanceResult
from shared.dflash.drafters import DFlashDrafter
from shared.dflash.export import load_drafter
from shared.dflash.speculative import measure_acceptance
from shared.dflash.target import TargetModel
from shared.tiny_target import demo_prompts
from tests.serving.vllm_server import PYTHON, vllm_server

pytestmark = pytest.mark.serving

NUM_PROMPTS = 24
MAX_NEW_TOKENS = 160
SEED = 20_261_130


@dataclass(frozen=True)
class Demo:
    """What the demo left, and our own measurement on the test's prompts."""

    target: Path
    drafter: Path
    block_size: int
    prompts: list[list[int]]
    ours: AcceptanceResult


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    if not PYTHON.exists():
        pytest.fail("run `make test-serving`: it makes the environment with vLLM's CPU build")
    if left := os.environ.get("DFLASH_MESH_DEMO"):
        folder = Path(left)
    else:
        folder = tmp_path_factory.mktemp("demo") / "run"
        command = [sys.executable, "-m", "control_plane.cli", "demo", "--dir", str(folder)]
        done = subprocess.run([*command, "--port", "0"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    target_folder, drafter_folder = folder / "target", folder / "export" / "drafter"
    tokenizer = TargetTokenizer.load(target_folder)
    prompts = [
        tokenizer.render(row["messages"], thinking=True) for row in demo_prompts(NUM_PROMPTS, SEED)
    ]
    target = TargetModel.load(target_folder, torch.float32, "cpu")
    model = load_drafter(drafter_folder, torch.float32)
    ours = measure_acceptance(
        target,
        DFlashDrafter(model, target.head),
        prompts,
        MAX_NEW_TOKENS,
        compare_with_greedy=True,
    )
    yield Demo(target_folder, drafter_folder, model.config.block_size, prompts, ours)


def permuted(drafter: Path, folder: Path) -> Path:
    """A copy that takes each captured layer for another one: the blocks of `fc` in reverse order.

    Reversing the ids in config.json alone would not do: vLLM collects states in layer order,
    whatever the order of the list.
    """
    shutil.copytree(drafter, folder)
    tensors = load_file(folder / "model.safetensors")
    hidden_size = tensors["norm.weight"].numel()
    blocks = tensors["fc.weight"].split(hidden_size, dim=1)
    assert len(blocks) > 1
    tensors["fc.weight"] = torch.cat(blocks[::-1], dim=1).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_our_own_speculative_output_is_greedy(demo: Demo) -> None:
    assert demo.ours.num_equal_to_greedy == NUM_PROMPTS
    assert demo.ours.drafts_accepted_length > 2


def test_the_server_drafts_as_well_as_we_do_and_its_output_is_greedy(
    demo: Demo, tmp_path: Path, port: int
) -> None:
    with vllm_server(demo.target, tmp_path / "plain.log", port) as plain:
        greedy = [plain.greedy(prompt, MAX_NEW_TOKENS) for prompt in demo.prompts]
    with vllm_server(
        demo.target,
        tmp_path / "drafter.log",
        port,
        drafter=demo.drafter,
        num_drafts=demo.block_size - 1,
    ) as server:
        drafted = [server.greedy(prompt, MAX_NEW_TOKENS) for prompt in demo.prompts]
        theirs = server.acceptance_length()
    assert drafted == greedy
    assert drafted == [one.token_ids for one in demo.ours.prompts]
    print(f"acceptance length: vLLM {theirs:.3f}, ours {demo.ours.drafts_accepted_length:.3f}")
    assert theirs == pytest.approx(demo.ours.drafts_accepted_length, rel=0.05)


def test_permuted_target_layers_show_in_the_acceptance_length(
    demo: Demo, tmp_path: Path, port: int
) -> None:
    wrong = permuted(demo.drafter, tmp_path / "permuted")
    with vllm_server(
        demo.target,
        tmp_path / "permuted.log",
        port,
        drafter=wrong,
        num_drafts=demo.block_size - 1,
    ) as server:
        for prompt in demo.prompts:
            server.greedy(prompt, MAX_NEW_TOKENS)
        theirs = server.acceptance_length()
    print(f"acceptance length with permuted layers: {theirs:.3f}")
    assert theirs < 0.95 * demo.ours.drafts_accepted_length
