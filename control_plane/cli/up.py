"""`up`: the control plane itself, in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from control_plane.server import serve
from control_plane.settings import Settings, token_from_environment


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("dflash-mesh-data"),
    show_default=True,
    help="Data folder: database and run folders.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option(
    "--export-root",
    "export_roots",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that file:// exports may go to, beside the data folder.",
)
@click.option("--allowed-host", "allowed_hosts", multiple=True, help="Host name clients may use.")
@click.option(
    "--resume/--no-resume", default=True, show_default=True, help="Resume runs paused by shutdown."
)
@click.option("--max-active-runs", type=click.IntRange(1, 1000), default=4, show_default=True)
@click.option("--max-queued-runs", type=click.IntRange(0, 100_000), default=200, show_default=True)
def up(
    data: Path,
    host: str,
    port: int,
    export_roots: tuple[Path, ...],
    allowed_hosts: tuple[str, ...],
    resume: bool,
    max_active_runs: int,
    max_queued_runs: int,
) -> int:
    """Run the control plane until SIGTERM or Ctrl-C; running runs are drained and paused then.

    Unless it listens on loopback only, it needs a token in DFLASH_MESH_TOKEN.
    """
    settings = Settings(
        data=data.resolve(),
        host=host,
        port=port,
        token=token_from_environment(),
        export_roots=tuple(root.resolve() for root in export_roots),
        allowed_hosts=allowed_hosts,
        resume=resume,
        max_active_runs=max_active_runs,
        max_queued_runs=max_queued_runs,
    )
    return serve(settings.checked())


def register(root: click.Group) -> None:
    root.add_command(up)
