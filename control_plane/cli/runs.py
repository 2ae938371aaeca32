"""`run start|list|show|watch|pause|resume|stop|logs|evaluate|delete`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from control_plane.cli.api import Api
from control_plane.cli.command import EXIT_ENDED_BADLY, SuggestingGroup, as_json
from control_plane.cli.output import emit_json, note, shortened, table
from control_plane.cli.overrides import from_folder, parse_overrides
from control_plane.cli.plans import show_forecasts
from control_plane.cli.watch import describe, told_reason, watch_run
from shared.config import parse_config, preset_names
from shared.states import RunState, WorkerState


@click.group(cls=SuggestingGroup)
def run() -> None:
    """Start, stop and follow runs."""


@run.command()
@click.option("--preset", help=f"One of: {', '.join(preset_names())}.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with the run's configuration (or what differs from the preset).",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one field.")
@click.option("--dry-run", is_flag=True, help="Resolve and forecast; start nothing.")
@click.option("--watch", is_flag=True, help="Follow the run until it ends.")
@as_json
@click.pass_obj
def start(
    api: Api,
    preset: str | None,
    config_file: Path | None,
    overrides: tuple[str, ...],
    dry_run: bool,
    watch: bool,
    json_: bool,
) -> int:
    """Start a run from a preset, a TOML file, or both."""
    if preset is None and config_file is None:
        raise click.UsageError("give --preset or --config")
    body: dict[str, Any] = {"overrides": parse_overrides(overrides)}
    if preset is not None:
        body["preset"] = preset
    if config_file is not None:
        tree = parse_config(config_file.read_text("utf-8"), source=str(config_file))
        body["config"] = from_folder(tree, config_file.parent)
    answer = api.post("/v1/runs", body, dry_run="true" if dry_run else None)
    if json_ and (dry_run or not watch):
        emit_json(answer)
        return 0
    if dry_run:
        show_forecasts([answer["forecast"]])
        note("nothing was started; --json shows the resolved configuration too")
        return 0
    note(f"run {answer['id']} ({answer['name']}): {api.url}/#/runs/{answer['id']}")
    if not watch:
        click.echo(answer["id"])
        return 0
    return _finish(watch_run(api, answer["id"]), json_)


@run.command("list")
@click.option("--state", type=click.Choice([state.value for state in RunState]))
@as_json
@click.pass_obj
def list_(api: Api, state: str | None, json_: bool) -> None:
    """List runs, newest first."""
    runs = [r for r in api.items("/v1/runs") if state is None or r["state"] == state]
    if json_:
        return emit_json(runs)
    rows = [
        (
            *(r["id"], r["name"], r["state"], _steps(r), _time(r["created_at"])),
            shortened(told_reason(r)),
        )
        for r in runs
    ]
    click.echo(table(("id", "name", "state", "step", "created", "reason"), rows))
    return None


@run.command()
@click.argument("run_id")
@click.option("--all", "all_", is_flag=True, help="Every incarnation, not only the newest.")
@as_json
@click.pass_obj
def show(api: Api, run_id: str, all_: bool, json_: bool) -> None:
    """Show one run and its workers."""
    view = api.get(f"/v1/runs/{run_id}")
    if json_:
        return emit_json(view)
    click.echo(f"{view['id']}  {view['name']}  {describe(view)}")
    shown = {**view, "reason": told_reason(view)}
    for key in ("reason", "bottleneck", "acceptance_length"):
        if shown[key] is not None:
            click.echo(f"{key.replace('_', ' ')}: {shown[key]}")
    if all_:
        workers = api.items("/v1/workers", run_id=run_id)
    else:
        workers = api.items(f"/v1/runs/{run_id}/workers")
    rows = [
        (
            f"{w['role']}-{w['rank']}",
            w["state"],
            w["host"],
            w["pid"],
            w["device"],
            _heartbeat(w),
            w["restarts"],
            w["last_error"],
        )
        for w in workers
    ]
    head = ("worker", "state", "host", "pid", "device", "heartbeat", "restarts", "last error")
    click.echo(table(head, rows))
    click.echo(f"allowed: {', '.join(view['allowed_actions'])}")
    return None


@run.command()
@click.argument("run_id")
@as_json
@click.pass_obj
def watch(api: Api, run_id: str, json_: bool) -> int:
    """Follow a run until it ends."""
    return _finish(watch_run(api, run_id), json_)


@run.command()
@click.argument("run_id")
@click.option("--now", is_flag=True, help="Skip the drain: leave at once, keep the checkpoints.")
@click.option("--wait", is_flag=True, help="Return when the run has stopped.")
@as_json
@click.pass_obj
def stop(api: Api, run_id: str, now: bool, wait: bool, json_: bool) -> int:
    """Drain, checkpoint and stop a run."""
    view = api.post(f"/v1/runs/{run_id}/stop", {"mode": "now" if now else "drain"})
    return _answer(watch_run(api, run_id) if wait else view, json_)


@run.command()
@click.argument("run_id")
@as_json
@click.pass_obj
def pause(api: Api, run_id: str, json_: bool) -> int:
    """Hold a run with the state of every worker."""
    return _answer(api.post(f"/v1/runs/{run_id}/pause"), json_)


@run.command()
@click.argument("run_id")
@as_json
@click.pass_obj
def resume(api: Api, run_id: str, json_: bool) -> int:
    """Go on with a paused, stopped, failed or blocked run (a blocked gate is overridden)."""
    return _answer(api.post(f"/v1/runs/{run_id}/resume"), json_)


@run.command()
@click.argument("run_id")
@click.option("--files", is_flag=True, help="Also its files, where verified elsewhere.")
@as_json
@click.pass_obj
def delete(api: Api, run_id: str, files: bool, json_: bool) -> int:
    """Forget an ended run."""
    answer = api.delete(f"/v1/runs/{run_id}", files="true" if files else None)
    if json_:
        emit_json(answer)
    else:
        click.echo(f"{run_id}: forgotten")
    return 0


@run.command()
@click.argument("run_id")
@click.option("--role", help="Only this role.")
@click.option("--rank", type=int, help="Only this rank.")
@click.option("--level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--tail", type=click.IntRange(1, 10_000), default=100, show_default=True)
@as_json
@click.pass_obj
def logs(
    api: Api,
    run_id: str,
    role: str | None,
    rank: int | None,
    level: str | None,
    tail: int,
    json_: bool,
) -> None:
    """Show the last log lines of a run."""
    answer = api.get(f"/v1/runs/{run_id}/logs", role=role, rank=rank, level=level, tail=tail)
    if json_:
        return emit_json(answer)
    for entry in answer["items"]:
        click.echo(entry["line"] if "line" in entry else f"{entry['role']}: {entry['message']}")
    return None


@run.command()
@click.argument("run_id")
@click.option("--checkpoint", default="latest", show_default=True, help="'latest' or a step.")
@click.option("--num-prompts", type=click.IntRange(1))
@as_json
@click.pass_obj
def evaluate(api: Api, run_id: str, checkpoint: str, num_prompts: int | None, json_: bool) -> None:
    """Measure the acceptance length of a checkpoint."""
    step: int | str = int(checkpoint) if checkpoint.isdigit() else checkpoint
    body = {"checkpoint": step, "num_prompts": num_prompts}
    answer = api.post(f"/v1/runs/{run_id}/evaluations", body)
    emit_json(answer) if json_ else click.echo(f"evaluation {answer['id']}: {answer['state']}")


def _answer(view: dict[str, Any], json_: bool) -> int:
    if json_:
        emit_json(view)
    else:
        reason = told_reason(view)
        click.echo(f"{view['id']}: {view['state']}" + (f" ({reason})" if reason else ""))
    return 0


def _finish(view: dict[str, Any], json_: bool) -> int:
    _answer(view, json_)
    return EXIT_ENDED_BADLY if view["state"] in ("failed", "blocked") else 0


def _steps(view: dict[str, Any]) -> str:
    progress = view["progress"]
    return f"{progress['step']}/{progress['steps_total']}" if progress["steps_total"] else "-"


def _heartbeat(worker: dict[str, Any]) -> str | None:
    """How old the last heartbeat of a worker that lives is."""
    age_s = worker["heartbeat_age_s"]
    is_gone = worker["state"] in (WorkerState.EXITED, WorkerState.FAILED)
    return None if is_gone or age_s is None else f"{age_s:.1f} s"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def register(root: click.Group) -> None:
    root.add_command(run)
