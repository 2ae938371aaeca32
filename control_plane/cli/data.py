"""`data check`: the gates of a run over files that exist already.

Reads conversations in every format and shape that prompts may have, completions logs and Arrow
shards. Without --target conversations are judged by their words; with it, by the target's tokens.
The report is the one a run shows, and the rows that cannot be used; nothing is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from control_plane.cli.command import EXIT_ENDED_BADLY, SuggestingGroup, as_json
from control_plane.cli.output import ProgressLine, emit_json, table
from services.data.check import check_files
from services.data.check_rows import ConversationBatcher
from services.data.tokenizer_files import read_tokenizer, read_tokenizer_facts
from shared.config.schema import GateSection
from shared.gates import Gatekeeper, GateTokens

_SHOWN_CHARACTERS = 100


@click.group(cls=SuggestingGroup)
def data() -> None:
    """Look at data before a target forward is spent on it."""


@data.command()
@click.argument("files", nargs=-1, required=True)
@click.option(
    "--target",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Target folder: its tokenizer counts tokens, and tells thinking tokens.",
)
@click.option("--thinking/--no-thinking", default=None, help="What the prompts asked for.")
@as_json
def check(files: tuple[str, ...], target: Path | None, thinking: bool | None, json_: bool) -> int:
    """Report on conversations, completions logs and shards, in files, folders or object stores.

    Exit code 6 when a limit is passed, or rows cannot be used.
    """
    keeper = Gatekeeper(GateSection(), _gate_tokens(target), num_prompts=0)
    tokenizer = None if target is None else read_tokenizer(target)
    line = ProgressLine()

    def progress(source: str) -> None:
        line.show(f"{keeper.ledger.num_seen} samples, now {source}")

    unusable = check_files(files, keeper, ConversationBatcher(tokenizer, thinking), progress)
    line.close()
    report = keeper.report()
    report["unusable_rows"] = {"count": unusable.count, "examples": unusable.examples}
    if json_:
        emit_json(report)
    else:
        _show(report)
    return EXIT_ENDED_BADLY if report["blocked"] or unusable.count else 0


def _gate_tokens(target: Path | None) -> GateTokens:
    if target is None:
        return GateTokens()
    facts = read_tokenizer_facts(target)
    return GateTokens(
        think_open_id=facts.think_open_id,
        think_close_id=facts.think_close_id,
        special_texts=facts.special_texts,
    )


def _show(report: dict[str, Any]) -> None:
    click.echo(
        f"samples: {report['num_seen']} seen, {report['num_accepted']} accepted; "
        f"{report['rejected_share']:.1%} rejected, limit {report['rejected_limit']:.0%}"
    )
    if report["unusable_rows"]["count"]:
        click.echo(f"rows that cannot be used: {report['unusable_rows']['count']}")
        for one in report["unusable_rows"]["examples"]:
            click.echo(f"  {one['source']}: {one['detail']}")
    rows = [
        (one["reason"], one["count"], f"{one['share']:.1%}", f"{one['limit']:.0%}")
        for one in report["reasons"]
    ]
    click.echo(table(("reason", "count", "share", "limit"), rows))
    for one in report["reasons"]:
        if one["count"]:
            click.echo(f"{one['reason']}: {one['advice']}")
            for example in one["examples"]:
                click.echo(f"  {_example(example)}")
    same = report["most_frequent_response"]
    click.echo(
        f"most frequent answer: {same['count']} times ({same['share']:.1%}, limit "
        f"{same['limit']:.0%}) {_excerpt(same['text'])!r}"
    )
    bins = [
        (f"{one['from']}-{one['to'] - 1}", one["count"]) for one in report["mask_sums"]["histogram"]
    ]
    counted = "supervised tokens" if report["unit"] == "token" else "characters of the answers"
    click.echo(table((counted, "samples"), bins))
    if report["blocked"]:
        click.echo(f"would block a run: {report['block_reason']}.")
        click.echo(report["cause"])


def _example(example: dict[str, Any]) -> str:
    """Where, why, and the beginning of the answer."""
    where = example["source"] or f"completion {example['seq']}"
    shown = "" if example["text"] is None else f": {_excerpt(example['text'])!r}"
    return f"{where}: {example['detail']}{shown}"


def _excerpt(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def register(root: click.Group) -> None:
    root.add_command(data)
