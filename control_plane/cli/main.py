"""The root of the command line: its groups, and the one place where errors end."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

import click

from control_plane.cli import checks, data, demo, exports, models, plans, runs, up
from control_plane.cli.api import Api
from control_plane.cli.command import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    SuggestingGroup,
)
from shared.errors import (
    ConfigError,
    ConflictError,
    MeshError,
    NotFoundError,
    UnreachableError,
    UserError,
)


@click.group(cls=SuggestingGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="DFLASH_MESH_URL", help="Address of the control plane.")
@click.version_option(package_name="dflash-mesh")
@click.pass_context
def root(ctx: click.Context, url: str | None) -> None:
    """Train DFlash drafters on a target model's own answers.

    Start a control plane with 'up', runs with 'run start'; 'demo' shows the whole job.
    """
    ctx.obj = Api(url)
    ctx.call_on_close(ctx.obj.close)


@root.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell; source it from the shell's start file."""
    click.echo(f'eval "$(_DFLASH_MESH_COMPLETE={shell}_source dflash-mesh)"')


for module in (up, runs, exports, plans, data, models, checks, demo):
    module.register(root)


def installed_version() -> str:
    """The distribution's version, or 'source' when it is not installed."""
    try:
        return version("dflash-mesh")
    except PackageNotFoundError:
        return "source"


def exit_code(error: MeshError) -> int:
    """The documented exit code of an error."""
    if isinstance(error, UnreachableError):
        return EXIT_UNREACHABLE
    if isinstance(error, ConflictError):
        return EXIT_REFUSED
    if isinstance(error, NotFoundError):
        return EXIT_NOT_FOUND
    if isinstance(error, ConfigError | UserError):
        return EXIT_USAGE
    return EXIT_FAILED


def _fail(error: MeshError) -> NoReturn:
    if "--json" in sys.argv:
        fields = [
            {"field": e.field, "message": e.message, "suggestion": e.suggestion}
            for e in error.errors
        ]
        body = {"error": error.slug, "detail": error.detail, "errors": fields}
        click.echo(json.dumps(body, indent=2), err=True)
    else:
        click.echo(f"error: {error}", err=True)
    sys.exit(exit_code(error))


def main() -> NoReturn:
    """Run the command line; never returns."""
    try:
        result = root.main(standalone_mode=False, prog_name="dflash-mesh")
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output has gone (for example `| head`); nothing is left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except MeshError as error:
        _fail(error)
    sys.exit(result if isinstance(result, int) else 0)
