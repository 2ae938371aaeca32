"""`data check`: the gates of a run over files that exist already.

Reads completions logs (`batch_*.jsonl`) and Arrow shards (`*.arrow`, or a data-set folder). The
report is the one a run shows; nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from control_plane.cli.command import EXIT_ENDED_BADLY, SuggestingGroup, as_json
from control_plane.cli.output import ProgressLine, emit_json, table
from services.data.shards import ShardReader
from services.data.tokenizer_files import read_tokenizer_facts
from shared.config.schema import GateSection
from shared.errors import DataError
from shared.gates.gatekeeper import Gatekeeper
from shared.gates.sample import Candidate, GateTokens
from shared.messages import Completion


@click.group(cls=SuggestingGroup)
def data() -> None:
    """Look at data before a target forward is spent on it."""


@data.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--target",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Target folder: its tokenizer tells mask and thinking tokens.",
)
@click.option("--thinking/--no-thinking", default=None, help="What the prompts asked for.")
@as_json
def check(files: tuple[Path, ...], target: Path | None, thinking: bool | None, json_: bool) -> int:
    """Report on completions logs and Arrow shards; exit code 6 when a limit is passed."""
    gates = GateSection()
    keeper = Gatekeeper(gates, _gate_tokens(target), num_prompts=0)
    line = ProgressLine()
    for path in _expand(files):
        for candidate in _candidates(path, keeper.ledger.num_seen, thinking):
            keeper.judge(candidate)
            if keeper.ledger.num_seen % 1000 == 0:
                line.show(f"{keeper.ledger.num_seen} samples, now {path.name}")
    line.close()
    verdict = keeper.verdict(final=True)
    report = keeper.report()
    if json_:
        emit_json(report)
    else:
        _show(report)
    return EXIT_ENDED_BADLY if verdict.blocked else 0


def _expand(files: tuple[Path, ...]) -> Iterator[Path]:
    for path in files:
        if path.is_dir():
            found = sorted([*path.glob("batch_*.jsonl"), *path.glob("*.arrow")])
            if not found:
                raise DataError(f"{path} holds neither batch_*.jsonl nor *.arrow files")
            yield from found
        else:
            yield path


def _candidates(path: Path, first_seq: int, thinking: bool | None) -> Iterator[Candidate]:
    if path.suffix == ".arrow":
        reader = ShardReader(path)
        for row in range(len(reader)):
            ids, mask = reader.tokens(row)
            yield Candidate(first_seq + row, ids.tolist(), mask.tolist(), thinking=thinking)
        return
    if path.suffix != ".jsonl":
        raise DataError(f"{path}: data check reads completions (.jsonl) and shards (.arrow)")
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, 1):
            try:
                one = msgspec.json.decode(raw, type=Completion)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise DataError(
                    f"{path}, line {number}: not a completion of the log ({error}); expected the "
                    "lines that a generator writes"
                ) from error
            yield Candidate(
                first_seq + number - 1,
                [*one.prompt_ids, *one.output_ids],
                [0] * len(one.prompt_ids) + [1] * len(one.output_ids),
                prompt_sha256=one.prompt_sha256,
                text=one.text,
                finish_reason=one.finish_reason,
                thinking=one.thinking if thinking is None else thinking,
            )


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
    click.echo(f"samples: {report['num_seen']} seen, {report['num_accepted']} accepted")
    rows = [
        (one["reason"], one["count"], f"{one['share']:.1%}", f"{one['limit']:.0%}")
        for one in report["reasons"]
    ]
    click.echo(table(("reason", "count", "share", "limit"), rows))
    same = report["most_frequent_response"]
    click.echo(
        f"most frequent answer: {same['count']} times ({same['share']:.1%}, limit "
        f"{same['limit']:.0%}) {same['text']!r}"
    )
    bins = [
        (f"{one['from']}-{one['to'] - 1}", one["count"]) for one in report["mask_sums"]["histogram"]
    ]
    click.echo(table(("supervised tokens", "samples"), bins))
    if report["blocked"]:
        click.echo(f"would block a run: {report['block_reason']}.")
        click.echo(report["cause"])


def register(root: click.Group) -> None:
    root.add_command(data)
