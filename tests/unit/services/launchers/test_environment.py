"""What a worker's environment holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.launchers import LaunchSpec
from services.launchers.local import worker_environment
from shared.errors import EnvironmentFault
from shared.states import Role


def spec(device: str = "auto", **fields: object) -> LaunchSpec:
    given: dict[str, object] = {
        "run_id": "r",
        "role": Role.BATCHER,
        "rank": 0,
        "incarnation": "abc",
        "job_id": None,
        "device": device,
        "log_path": Path("log"),
    }
    return LaunchSpec(**{**given, **fields})  # type: ignore[arg-type]


def test_the_token_is_the_control_planes_or_none() -> None:
    inherited = {"DFLASH_MESH_TOKEN": "stale", "OTHER": "kept"}
    env = worker_environment(spec(), inherited, None)
    assert "DFLASH_MESH_TOKEN" not in env
    assert env["OTHER"] == "kept"
    assert worker_environment(spec(), inherited, "fresh")["DFLASH_MESH_TOKEN"] == "fresh"


def test_threads_and_extra_variables() -> None:
    env = worker_environment(spec(num_threads=3, extra_env={"X": "1"}), {}, None)
    assert env["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"], env["X"]) == ("3", "3", "1")


def test_pythonpath_is_kept_behind_our_own_folder() -> None:
    root = str(Path(__file__).parents[4])
    env = worker_environment(spec(), {"PYTHONPATH": "/a:/b"}, None)
    assert env["PYTHONPATH"].split(":") == [root, "/a", "/b"]


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        ("cuda:1", None, "1"),
        ("cuda:1", "4,7", "7"),
        ("cpu", "0,1", ""),
        ("auto", "0,1", "0,1"),
        ("auto", None, None),
    ],
)
def test_one_gpu_is_visible(device: str, visible: str | None, expected: str | None) -> None:
    inherited = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    env = worker_environment(spec(device), inherited, None)
    assert env.get("CUDA_VISIBLE_DEVICES") == expected


def test_a_gpu_that_is_not_visible_is_refused() -> None:
    with pytest.raises(EnvironmentFault, match="shows 1 GPUs: 4"):
        worker_environment(spec("cuda:1"), {"CUDA_VISIBLE_DEVICES": "4"}, None)
