"""`target import-gguf`, `target builtin` and `eval`: model folders, in a process of their own.

The control plane's process never loads torch, so these start the module that does and pass its
output and exit code through.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

from control_plane.cli.command import SuggestingGroup
from shared.errors import ConflictError
from shared.tiny_target import model_folder


@click.group(cls=SuggestingGroup)
def target() -> None:
    """Make target model folders."""


@target.command("import-gguf")
@click.argument("source")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def import_gguf(source: str, folder: Path) -> int:
    """Turn a GGUF file (or the name of a Python package that ships one) into a target folder."""
    return run_module("services.target_models.import_gguf", source, str(folder))


@target.command("builtin")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def builtin(folder: Path) -> None:
    """Copy the tiny target that ships with the project to FOLDER."""
    if folder.exists():
        raise ConflictError(f"{folder} exists: name a new folder, or remove it first")
    shutil.copytree(model_folder(), folder)
    click.echo(str(folder))


@click.command("eval")
@click.option("--target", "target_folder", required=True, help="Target model folder.")
@click.option("--drafter", required=True, help="Exported drafter folder.")
@click.option("--prompts", required=True, help="JSONL prompts, or 'builtin:tiny'.")
@click.option("--num-prompts", type=click.IntRange(1), default=32, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option(
    "--thinking",
    type=click.Choice(["on", "off", "template"]),
    default="template",
    show_default=True,
    help="The chat template's thinking mode: as in the run that made the drafter.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
)
@click.option("--device", default="auto", show_default=True, help="'cpu', 'cuda:0', or 'auto'.")
@click.option("--num-threads", type=click.IntRange(1), help="CPU threads; torch's choice if unset.")
@click.option("--no-baselines", is_flag=True, help="Leave out untrained and prompt lookup.")
@click.option("--json", "json_", is_flag=True, help="Print the result as JSON.")
def evaluate(
    target_folder: str,
    drafter: str,
    prompts: str,
    num_prompts: int,
    max_new_tokens: int,
    thinking: str,
    dtype: str,
    device: str,
    num_threads: int | None,
    no_baselines: bool,
    json_: bool,
) -> int:
    """Measure the acceptance length of a drafter folder; needs no control plane."""
    return run_module(
        "workers.evaluator.offline",
        *("--target", target_folder, "--drafter", drafter, "--prompts", prompts),
        *("--num-prompts", str(num_prompts), "--max-new-tokens", str(max_new_tokens)),
        *("--thinking", thinking, "--dtype", dtype, "--device", device),
        *(["--num-threads", str(num_threads)] if num_threads else []),
        *(["--no-baselines"] if no_baselines else []),
        *(["--json"] if json_ else []),
    )


def run_module(module: str, *args: str) -> int:
    """`python -m module args` with our terminal; its exit code."""
    # Bars of a loading library would run through our own lines.
    environment = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", **os.environ}
    command = [sys.executable, "-m", module, *args]
    return subprocess.run(command, env=environment, check=False).returncode


def register(root: click.Group) -> None:
    root.add_command(target)
    root.add_command(evaluate)
