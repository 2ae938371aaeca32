"""`export start|show|verify|cancel|fetch`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, get_args

import click

from control_plane.cli.api import Api
from control_plane.cli.command import EXIT_ENDED_BADLY, SuggestingGroup, as_json
from control_plane.cli.output import ProgressLine, emit_json
from shared.api.exports import ExportPart
from shared.units import format_bytes, format_duration

_ENDED = {"completed", "failed", "cancelled", "superseded"}
POLL_S = 0.1


@click.group(cls=SuggestingGroup)
def export() -> None:
    """Export the artifacts of a run, with a verified manifest."""


@export.command()
@click.argument("run_id")
@click.option("--to", "destination", help="file:///folder, s3://bucket/prefix or a local path.")
@click.option(
    "--checkpoints",
    default="latest",
    show_default=True,
    help="latest, all, or step numbers such as 500,1000.",
)
@click.option(
    "--include",
    multiple=True,
    type=click.Choice(get_args(ExportPart)),
    help="A part to export; may be repeated. Default: all but completions and quarantine.",
)
@click.option("--wait/--no-wait", default=True, show_default=True)
@as_json
@click.pass_obj
def start(
    api: Api,
    run_id: str,
    destination: str | None,
    checkpoints: str,
    include: tuple[str, ...],
    wait: bool,
    json_: bool,
) -> int:
    """Export a run, also while it is training."""
    body: dict[str, Any] = {"checkpoints": parse_checkpoints(checkpoints)}
    if destination is not None:
        if "://" not in destination:
            destination = Path(destination).expanduser().resolve().as_uri()
        body["destination"] = destination
    if include:
        body["include"] = list(include)
    view = api.post(f"/v1/runs/{run_id}/exports", body)
    return _report(wait_for_export(api, view["id"]) if wait else view, json_)


@export.command()
@click.argument("export_id")
@click.option("--wait", is_flag=True, help="Until it has ended.")
@as_json
@click.pass_obj
def show(api: Api, export_id: str, wait: bool, json_: bool) -> int:
    """Show an export."""
    view = wait_for_export(api, export_id) if wait else api.get(f"/v1/exports/{export_id}")
    return _report(view, json_)


@export.command()
@click.argument("export_id")
@as_json
@click.pass_obj
def verify(api: Api, export_id: str, json_: bool) -> int:
    """Read the destination again and compare every file with the manifest.

    An export that a later one to the same place has taken over is reported as superseded.
    """
    api.post(f"/v1/exports/{export_id}/verify")
    return _report(wait_for_export(api, export_id), json_)


@export.command()
@click.argument("export_id")
@as_json
@click.pass_obj
def cancel(api: Api, export_id: str, json_: bool) -> int:
    """Cancel an export that is under way."""
    return _report(api.delete(f"/v1/exports/{export_id}"), json_)


def wait_for_export(api: Api, export_id: str, *, quiet: bool = False) -> dict[str, Any]:
    """Follow an export until it has ended; its last view."""
    line = ProgressLine()
    started, first_bytes, shown_state = time.monotonic(), None, None
    try:
        while True:
            view: dict[str, Any] = api.get(f"/v1/exports/{export_id}")
            state = view["state"]
            if state != shown_state:
                started, first_bytes = time.monotonic(), view["bytes_done"]
            if not quiet:
                text = _describe(view, time.monotonic() - started, first_bytes or 0)
                line.show(text, force=state != shown_state)
            shown_state = state
            if view["state"] in _ENDED:
                return view
            time.sleep(POLL_S)
    finally:
        line.close()


def parse_checkpoints(text: str) -> str | list[int]:
    """'latest', 'all', or steps separated by commas."""
    if text in ("latest", "all"):
        return text
    try:
        return [int(step) for step in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: give 'latest', 'all', or steps such as 500,1000",
            param_hint="--checkpoints",
        ) from None


def _describe(view: dict[str, Any], elapsed_s: float, first_bytes: int) -> str:
    if view["state"] == "queued":
        return "queued | waits for its archiver to start"
    text = (
        f"{view['state']} | files {view['files_done']}/{view['files_total']} | "
        f"{format_bytes(view['bytes_done'])} of {format_bytes(view['bytes_total'])}"
    )
    rate = (view["bytes_done"] - first_bytes) / max(elapsed_s, 1e-3)
    if rate > 0 and view["state"] == "running":
        left = (view["bytes_total"] - view["bytes_done"]) / rate
        text += f" | {format_bytes(rate)}/s | {format_duration(left)} left"
    return text


def _report(view: dict[str, Any], json_: bool) -> int:
    if json_:
        emit_json(view)
    else:
        click.echo(
            f"{view['id']}: {view['state']} -> {view['destination']} "
            f"({view['files_done']} files, {format_bytes(view['bytes_done'])})"
        )
        if view["manifest_sha256"]:
            click.echo(f"manifest sha256: {view['manifest_sha256']}")
        for kind in ("conflicts", "problems"):
            for item in view[kind]:
                click.echo(f"{kind[:-1]}: {item}")
    return EXIT_ENDED_BADLY if has_ended_badly(view) else 0


def has_ended_badly(view: dict[str, Any]) -> bool:
    """Whether an export is not what was asked for, or not all of it under its own names."""
    is_bad = view["state"] in ("failed", "superseded")
    return bool(is_bad or view["problems"] or view["conflicts"])


def register(root: click.Group) -> None:
    root.add_command(export)
