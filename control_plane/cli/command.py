"""What every command shares: exit codes, the group that suggests, and the --json option."""

from __future__ import annotations

import difflib

import click

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_REFUSED, EXIT_NOT_FOUND, EXIT_ENDED_BADLY = (
    1,
    2,
    3,
    4,
    5,
    6,
)
EXIT_INTERRUPTED = 130

as_json = click.option("--json", "json_", is_flag=True, help="Print the answer as JSON.")


class SuggestingGroup(click.Group):
    """A group that names the closest command when there is none of the given name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            close = difflib.get_close_matches(args[0], names, n=1, cutoff=0.5)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise click.UsageError(
                f"There is no command '{args[0]}'.{hint} Commands: {', '.join(names)}", ctx
            )
        return super().resolve_command(ctx, args)
