"""`demo`: the whole job on the tiny target, from an empty folder to a verified export.

    control plane (a process of its own) <-- run, export -- this command
    DIR/control_plane.sqlite  DIR/runs/ID/  DIR/target/  DIR/export/{manifest.json, drafter/, ...}

It ends with a summary and stops the control plane, unless `--keep` leaves the page up.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import click

from control_plane.cli.api import Api
from control_plane.cli.command import EXIT_ENDED_BADLY
from control_plane.cli.exports import has_ended_badly, wait_for_export
from control_plane.cli.output import emit_json, note
from control_plane.cli.overrides import parse_override
from control_plane.cli.watch import epoch_text, watch_run
from shared.errors import ConflictError, EnvironmentFault, MeshError
from shared.tiny_target import model_folder
from shared.units import format_bytes, format_duration, format_rate

MARKER = ".dflash-mesh-demo"
START_LIMIT_S = 60.0
STOP_LIMIT_S = 60.0


@click.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-run"),
    show_default=True,
    help="Where the demo leaves its run; an earlier demo there is removed.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one field.")
@click.option("--keep", is_flag=True, help="Leave the control plane and its page up at the end.")
@click.option("--json", "json_", is_flag=True, help="Print the summary as JSON.")
def demo(folder: Path, port: int, overrides: tuple[str, ...], keep: bool, json_: bool) -> int:
    """Run the whole job on this machine's CPU: about two minutes."""
    started = time.monotonic()
    folder = folder.resolve()
    signal.signal(signal.SIGTERM, _interrupt)
    prepare_folder(folder)
    wanted_port, port = port, choose_port(port)
    if port != wanted_port:
        note(f"port {wanted_port} is in use: the page is on port {port}")
    process = start_control_plane(folder, port)
    url = f"http://127.0.0.1:{port}"
    api = Api(url)
    try:
        wait_until_ready(api, process, folder)
        settings: dict[str, Any] = {"target.path": str(folder / "target")}
        settings.update(map(parse_override, overrides))
        run = api.post("/v1/runs", {"preset": "demo", "overrides": settings})
        note(f"status page: {url}/#/runs/{run['id']}")
        tracker = Peaks()
        run = watch_run(api, run["id"], on_update=tracker.update)
        if run["state"] != "completed":
            note(
                f"the run ended {run['state']}: {run['reason']}; logs in {folder}/runs/{run['id']}"
            )
            return EXIT_ENDED_BADLY
        export = api.post(
            f"/v1/runs/{run['id']}/exports", {"destination": (folder / "export").as_uri()}
        )
        export = wait_for_export(api, export["id"], quiet=True)
        summary = summarise(api, run, export, tracker, time.monotonic() - started)
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
        emit_json(summary) if json_ else show(summary, url, folder)
        if keep:
            note(f"the page stays up at {url}; Ctrl-C ends it")
            process.wait()
        is_good = export["state"] == "completed" and not has_ended_badly(export)
        return 0 if is_good else EXIT_ENDED_BADLY
    finally:
        api.close()
        stop_control_plane(process)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """SIGTERM ends the demo as Ctrl-C does, so that the control plane is stopped too."""
    raise KeyboardInterrupt


class Peaks:
    """The highest rate of each stage seen while the run went on; tokens a second."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}

    def update(self, run: dict[str, Any]) -> None:
        for name, rate in run["throughput"].items():
            self.rates[name] = max(rate, self.rates.get(name, 0.0))


def prepare_folder(folder: Path) -> None:
    """An empty demo folder with the target in it; refuses a folder that is not a demo's."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise ConflictError(
                f"{folder} exists and is not a demo's: name another folder with --dir"
            )
        if (folder / "control_plane.lock").exists() and _is_locked(folder):
            raise ConflictError(f"a control plane still runs on {folder}: stop it first")
        if len(own := _run_names(folder)) > 1:
            raise ConflictError(
                f"{folder} holds {len(own)} runs, more than the demo's own: name another folder "
                "with --dir, or remove it yourself"
            )
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
        shutil.copytree(model_folder(), folder / "target")
    except OSError as error:
        raise EnvironmentFault(
            f"the demo's folder {folder} cannot be written: {error.strerror}; name another one "
            "with --dir"
        ) from error


def _run_names(folder: Path) -> list[str]:
    runs = folder / "runs"
    return sorted(path.name for path in runs.iterdir()) if runs.is_dir() else []


def _is_locked(folder: Path) -> bool:
    import fcntl

    with (folder / "control_plane.lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def choose_port(wanted: int) -> int:
    """`wanted` when it is free, else any free port (the demo's address is printed anyway)."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise EnvironmentFault("no free TCP port on 127.0.0.1")


def start_control_plane(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """`dflash-mesh up` on the demo's folder, with its log beside it."""
    command = [
        *(sys.executable, "-m", "control_plane.cli", "up"),
        *("--data", str(folder), "--port", str(port), "--export-root", str(folder)),
    ]
    environment = {k: v for k, v in os.environ.items() if k != "DFLASH_MESH_TOKEN"}
    with (folder / "control_plane.log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def wait_until_ready(api: Api, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until the control plane answers; EnvironmentFault with its last words when it does not."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            api.get("/readyz")
        except MeshError:
            time.sleep(0.1)
        else:
            return
    tail = (folder / "control_plane.log").read_text("utf-8", "replace")[-2000:]
    raise EnvironmentFault(f"the control plane did not start:\n{tail}")


def stop_control_plane(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL after a limit; its workers end with it or by themselves."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def summarise(
    api: Api, run: dict[str, Any], export: dict[str, Any], peaks: Peaks, elapsed_s: float
) -> dict[str, Any]:
    """The figures of the demo, as they stand in the control plane."""
    evaluations = [
        e["result"]
        for e in api.items(f"/v1/runs/{run['id']}/evaluations")
        if e["state"] == "completed"
    ]
    return {
        "run_id": run["id"],
        "elapsed_s": round(elapsed_s, 1),
        "run_s": round((run["ended_at"] or 0) - run["created_at"], 1),
        "progress": run["progress"],
        "loss": run["loss"],
        "accuracy": run["accuracy"],
        "peak_tokens_per_s": peaks.rates,
        "evaluation": evaluations[-1] if evaluations else None,
        "export": {
            key: value
            for key, value in export.items()
            if key not in ("run_id", "files_done", "bytes_done", "created_at", "ended_at")
        },
    }


def show(summary: dict[str, Any], url: str, folder: Path) -> None:
    """The summary for people."""
    progress, export = summary["progress"], summary["export"]
    rates = summary["peak_tokens_per_s"]
    click.echo(
        f"\nrun {summary['run_id']} completed in {format_duration(summary['run_s'])} "
        f"({format_duration(summary['elapsed_s'])} with start and export)"
    )
    click.echo(
        f"  completions          {progress['completions_done']} done, "
        f"{progress['completions_failed']} failed"
    )
    click.echo(
        f"  samples              {progress['samples_accepted']} accepted, "
        f"{progress['samples_quarantined']} quarantined"
    )
    click.echo(
        f"  training             {progress['step']} steps, {epoch_text(progress)}, "
        f"loss {summary['loss']:.3f}, accuracy {summary['accuracy']:.3f}"
    )
    click.echo(
        "  peak rates           "
        + ", ".join(f"{k.split('_')[0]} {format_rate(v)}" for k, v in rates.items())
    )
    if (result := summary["evaluation"]) is not None:
        click.echo(
            f"  acceptance length    {result['acceptance_length']:.2f} on {result['num_prompts']} "
            "held-out prompts "
            + ("(output equal to greedy)" if result["equal_to_greedy"] else "(OUTPUT DIFFERS)")
        )
        if base := result["baselines"]:
            others = ", ".join(
                f"{_length(base[name])} {title}"
                for name, title in (
                    ("untrained", "untrained drafter"),
                    ("prompt_lookup", "prompt lookup"),
                )
                if name in base
            )
            click.echo(
                f"    on {result['baselines_num_prompts']} of them".ljust(23)
                + f"{_length(result['acceptance_length_on_baseline_prompts'])} beside {others}"
            )
        if (score := result["target_score"]) is not None:
            click.echo(f"  target's own score   {score['correct']} of {score['total']} right")
    click.echo(
        f"  export               {export['files_total']} files, "
        f"{format_bytes(export['bytes_total'])}, {export['state']}, "
        f"manifest sha256 {(export['manifest_sha256'] or '-')[:16]}"
    )
    click.echo(f"  drafter              {folder / 'export' / 'drafter'}")
    click.echo(f"  again, by hand       {_own_name()} up --data {folder}   then {url}/")


def _own_name() -> str:
    """This command as a person can type it, also when its environment is not activated."""
    own = Path(sys.argv[0]).absolute()
    return own.name if shutil.which(own.name) or not own.is_file() else str(own)


def _length(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def register(root: click.Group) -> None:
    root.add_command(demo)
