"""What can be known of the images without building them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser

from control_plane.cli.up import up

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docker"
IMAGES = sorted(FOLDER.glob("*.Dockerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN_IMAGES = [image for image in IMAGES if image.name != "sglang.Dockerfile"]


def steps(image: Path) -> list[dict[str, Any]]:
    return DockerfileParser(fileobj=BytesIO(image.read_bytes())).structure


def values(image: Path, instruction: str) -> list[str]:
    return [step["value"] for step in steps(image) if step["instruction"] == instruction]


def sent_to_the_engine() -> set[str]:
    """The names of the root that the ignore file lets through; it shuts out everything first."""
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    return {line.removeprefix("!") for line in lines[1:] if line.startswith("!")}


def test_there_is_an_image_for_each_kind_of_process():
    assert {image.stem for image in IMAGES} == {
        "control_plane",
        "worker_cpu",
        "worker_gpu",
        "sglang",
    }


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_what_is_copied_exists_and_is_sent_to_the_engine(image: Path):
    for value in values(image, "COPY"):
        *sources, _ = shlex.split(value)
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source in sent_to_the_engine(), source


@pytest.mark.parametrize("image", OWN_IMAGES, ids=lambda image: image.stem)
def test_what_the_distribution_is_built_from_is_copied(image: Path):
    copied = {source for value in values(image, "COPY") for source in shlex.split(value)[:-1]}
    packages = {"shared", "services", "control_plane", "workers"}
    assert packages | {"pyproject.toml", PROJECT["readme"], "LICENSE"} <= copied


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_nothing_runs_as_root(image: Path):
    assert values(image, "USER") == ["10001"]
    assert [step["instruction"] for step in steps(image)][-1] == "CMD"


@pytest.mark.parametrize("image", OWN_IMAGES, ids=lambda image: image.stem)
def test_the_data_folder_belongs_to_the_user_before_it_becomes_a_volume(image: Path):
    order = [(step["instruction"], step["value"]) for step in steps(image)]
    own = order.index(("RUN", "mkdir /data && chown mesh:mesh /data"))
    assert own < order.index(("VOLUME", "/data"))


@pytest.mark.parametrize("image", OWN_IMAGES, ids=lambda image: image.stem)
def test_the_command_is_one_of_ours_with_its_options(image: Path):
    [entry] = (json.loads(value) for value in values(image, "ENTRYPOINT"))
    [arguments] = (json.loads(value) for value in values(image, "CMD"))
    assert entry[0] in PROJECT["scripts"]
    assert arguments[0] == up.name
    context = up.make_context(arguments[0], arguments[1:])
    assert context.params["data"] == Path("/data")
    assert values(image, "EXPOSE") == [str(context.params["port"])]


def test_the_control_plane_image_leaves_torch_out():
    """Its own commands, run here on the project's files."""
    image = FOLDER / "control_plane.Dockerfile"
    [run] = [value for value in values(image, "RUN") if "python -c" in value]
    words = shlex.split(run)
    program = words[words.index("python") + 2]
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    names = {line.split(">")[0].split("[")[0].split("=")[0] for line in out}
    assert "fastapi" in names
    assert not names & {"torch", "transformers"}


class TestCompose:
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["mesh"]

    def test_it_builds_an_image_that_exists(self):
        build = self.service["build"]
        context = (FOLDER / build["context"]).resolve()
        assert context == ROOT
        assert context / build["dockerfile"] in IMAGES
        assert set(build["args"]) <= {
            value.split("=")[0] for value in values(context / build["dockerfile"], "ARG")
        }

    def test_it_publishes_the_port_on_loopback_only_and_wants_a_token(self):
        [port] = values(FOLDER / "worker_cpu.Dockerfile", "EXPOSE")
        assert self.service["ports"] == [f"127.0.0.1:{port}:{port}"]
        assert self.service["environment"]["DFLASH_MESH_TOKEN"].startswith("${DFLASH_MESH_TOKEN:?")

    def test_the_health_check_is_a_program_that_python_takes(self):
        kind, python, flag, program = self.service["healthcheck"]["test"]
        assert (kind, python, flag) == ("CMD", "python", "-c")
        compile(program, "healthcheck", "exec")
        assert "/readyz" in program

    def test_its_volume_is_the_data_folder(self):
        assert self.service["volumes"] == ["mesh-data:/data"]
