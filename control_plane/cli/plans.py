"""`plan` (what a run will need) and `inventory` (what a place holds).

A forecast needs no control plane: without one it is computed here, from the files of this machine.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from control_plane import submission
from control_plane.cli.api import Api
from control_plane.cli.command import as_json
from control_plane.cli.output import emit_json, note, table
from control_plane.cli.overrides import from_folder, parse_overrides
from shared.api.plan import PlanRequest
from shared.config import parse_config, preset_names
from shared.errors import UnreachableError
from shared.forecast import gpu_table
from shared.forecast.estimate import GENERATED_TOKENS_PER_S
from shared.units import format_bytes, format_duration, format_rate


@click.command()
@click.option("--preset", help=f"One of: {', '.join(preset_names())}.")
@click.option("--config", "config_file", type=click.Path(exists=True, path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE")
@click.option("--gpu", "gpus", multiple=True, help=f"Of: {', '.join(sorted(gpu_table()))}.")
@click.option("--compare", is_flag=True, help="Every accelerator of the table, side by side.")
@click.option("--price", "prices", multiple=True, metavar="GPU=USD", help="Dollars an hour.")
@click.option("--num-prompts", type=click.IntRange(1))
@click.option("--tokens-per-sample", type=click.FloatRange(1))
@click.option(
    "--target-config",
    type=click.Path(exists=True, path_type=Path),
    help="config.json of a target that is not on the control plane's machine.",
)
@as_json
@click.pass_obj
def plan(
    api: Api,
    preset: str | None,
    config_file: Path | None,
    overrides: tuple[str, ...],
    gpus: tuple[str, ...],
    compare: bool,
    prices: tuple[str, ...],
    num_prompts: int | None,
    tokens_per_sample: float | None,
    target_config: Path | None,
    json_: bool,
) -> None:
    """Forecast storage, bandwidth, memory, time and cost; nothing runs."""
    if preset is None and config_file is None:
        raise click.UsageError("give --preset or --config")
    body: dict[str, Any] = {
        "preset": preset,
        "overrides": parse_overrides(overrides),
        "gpus": sorted(gpu_table()) if compare else list(gpus),
        "usd_per_hour": dict(map(_price, prices)),
        "num_prompts": num_prompts,
        "tokens_per_sample": tokens_per_sample,
    }
    if config_file is not None:
        tree = parse_config(config_file.read_text("utf-8"), source=str(config_file))
        body["config"] = from_folder(tree, config_file.parent)
    if target_config is not None:
        body["target_config"] = json.loads(target_config.read_text("utf-8"))
    try:
        forecasts = api.post("/v1/plan", body)["forecasts"]
    except UnreachableError:
        request = PlanRequest.model_validate(body)
        forecasts = [one.model_dump(mode="json") for one in submission.plan(request, Path.cwd())]
        note(f"no control plane answers at {api.url}: computed on this machine")
    if json_:
        return emit_json(forecasts)
    show_forecasts(forecasts)
    if tokens_per_sample is None:
        click.echo("tokens a sample are assumed; --tokens-per-sample says what you expect")
    if not body["gpus"]:
        click.echo("for times and cost name an accelerator with --gpu, or --compare them all")
    return None


def show_forecasts(forecasts: list[dict[str, Any]]) -> None:
    """A table with a column for each forecast, and their warnings."""
    head = ("", *(f["gpu"] or "sizes" for f in forecasts))
    click.echo(table(head, _rows(forecasts)))
    for warning in sorted({w for f in forecasts for w in f["warnings"]}):
        click.echo(f"warning: {warning}")


def _price(text: str) -> tuple[str, float]:
    name, _, usd = text.partition("=")
    try:
        price = float(usd)
    except ValueError:
        price = math.nan
    if not name or not (math.isfinite(price) and price >= 0):
        raise click.BadParameter(f"{text!r} is not GPU=USD, such as h200=3.5", param_hint="--price")
    return name, price


@click.command()
@click.argument("url")
@click.option("--depth", type=click.IntRange(0, 10), default=1, show_default=True)
@as_json
@click.pass_obj
def inventory(api: Api, url: str, depth: int, json_: bool) -> None:
    """Objects and bytes by prefix, compared with manifests and the ledger."""
    if "://" not in url:
        url = Path(url).expanduser().resolve().as_uri()
    answer = api.get("/v1/inventory", url=url, depth=depth)
    if json_:
        return emit_json(answer)
    states = ("verified", "missing", "extra", "mismatched", "stale")
    rows = [
        (i["prefix"] or "/", i["objects"], format_bytes(i["bytes"]), *(i[s] for s in states))
        for i in answer["items"]
    ]
    click.echo(table(("prefix", "objects", "bytes", *states), rows))
    return None


PLAN_ROWS: tuple[tuple[str, str], ...] = (
    ("samples", "num_samples"),
    ("tokens a sample", "tokens_per_sample"),
    ("tokens an epoch", "tokens_per_epoch"),
    ("optimizer steps", "steps_total"),
    ("completions on disk", "completions_bytes"),
    ("shards on disk", "shards_bytes"),
    ("checkpoints on disk", "checkpoints_bytes"),
    ("hidden states, had they been stored", "hidden_states_offline_bytes"),
    ("hidden states on the links, a second", "link_bytes_per_s"),
    ("sockets for them", "link_sockets"),
    ("drafter parameters", "drafter_params"),
    ("target weights in memory", "target_memory_bytes"),
    ("trainer in memory", "trainer_memory_bytes"),
    ("target_forward, each", "target_tokens_per_s"),
    ("drafter_trainer, each", "trainer_tokens_per_s"),
    ("target GPUs that feed one trainer", "targets_per_trainer"),
    ("slower of the two", "bottleneck"),
    (f"generation, {format_rate(GENERATED_TOKENS_PER_S)} a server", "generate_s"),
    ("training", "train_s"),
    ("GPUs", "num_gpus"),
    ("cost", "cost_usd"),
)
# Without an accelerator there is no pace, and what follows from it would read as zero.
_WITH_GPU = frozenset({"link_bytes_per_s", "link_sockets", "num_gpus"})


def _rows(forecasts: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    rows = []
    for title, key in PLAN_ROWS:
        cells = [
            "-" if forecast["gpu"] is None and key in _WITH_GPU else _cell(key, forecast[key])
            for forecast in forecasts
        ]
        if any(cell != "-" for cell in cells):
            rows.append((title, *cells))
    return rows


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if "bytes" in key:
        return format_bytes(value)
    if key.endswith("tokens_per_s"):
        return format_rate(value)
    if key.endswith("_s"):
        return format_duration(value)
    if key == "cost_usd":
        return f"${value:,.0f}" if value >= 1 else f"${value:.2f}"
    if key == "targets_per_trainer":
        return f"{value:.2f}"
    if isinstance(value, int | float):
        return f"{value / 1e9:.2f} B" if value >= 1e9 else f"{value:,.0f}"
    return str(value)


def register(root: click.Group) -> None:
    root.add_command(plan)
    root.add_command(inventory)
