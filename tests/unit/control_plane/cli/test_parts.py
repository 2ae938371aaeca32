"""The command line's pure parts: overrides, events, tables, folders, exit codes."""

import socket
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from control_plane.cli.api import Api, parse_events
from control_plane.cli.command import SuggestingGroup
from control_plane.cli.demo import MARKER, choose_port, prepare_folder
from control_plane.cli.exports import has_ended_badly, parse_checkpoints, wait_for_export
from control_plane.cli.main import exit_code
from control_plane.cli.output import table
from control_plane.cli.overrides import from_folder, parse_override
from control_plane.cli.plans import plan
from control_plane.cli.runs import _answer
from control_plane.cli.watch import describe
from shared import errors


class Views:
    """A control plane that answers one view after another."""

    def __init__(self, *views: dict) -> None:
        self._views = iter(views)

    def get(self, path: str) -> dict:
        return next(self._views)


def export_view(state: str, done: int, **fields: object) -> dict:
    sizes = {"bytes_done": 10 * done, "bytes_total": 40, "files_total": 4, "files_done": done}
    return {"state": state, **sizes, "conflicts": [], "problems": [], **fields}


def test_every_state_of_an_export_is_shown_once_and_no_stale_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control_plane.cli.exports.POLL_S", 0.0)
    views = [("queued", 4), ("queued", 4), ("running", 1), ("verifying", 4), ("completed", 4)]
    wait_for_export(Views(*(export_view(*view) for view in views)), "export-1")  # type: ignore[arg-type]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" | ")[0] for line in lines] == [
        "queued",
        "running",
        "verifying",
        "completed",
    ]
    assert "files" not in lines[0] and "files 4/4" in lines[-1]


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (export_view("completed", 4), False),
        (export_view("cancelled", 1), False),
        (export_view("failed", 1), True),
        (export_view("superseded", 0), True),
        (export_view("completed", 4, conflicts=["x"]), True),
        (export_view("completed", 4, problems=["x"]), True),
    ],
)
def test_what_a_script_hears_of_an_export(view: dict, expected: bool) -> None:
    assert has_ended_badly(view) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainer.lr=1e-3", ("trainer.lr", 0.001)),
        ("generator.thinking=true", ("generator.thinking", True)),
        ("drafter.target_layer_ids=[1, 3]", ("drafter.target_layer_ids", [1, 3])),
        ("target.path=/models/a=b", ("target.path", "/models/a=b")),
        ('name="quoted"', ("name", "quoted")),
    ],
)
def test_overrides_are_toml_values_or_plain_strings(text: str, expected: object) -> None:
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["novalue", "=3", " =3"])
def test_an_override_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="KEY=VALUE"):
        parse_override(text)


def test_events_with_ids_comments_and_several_lines() -> None:
    stream = [
        ": keep-alive",
        "",
        "id: 7",
        "event: run",
        'data: {"state":',
        'data: "running"}',
        "",
        'data: {"x": 1}',
        "",
        "event: cut",
        'data: {"lost": true}',
    ]
    events = list(parse_events(iter(stream)))
    assert [(e.name, e.id, e.data) for e in events] == [
        ("run", "7", {"state": "running"}),
        ("message", None, {"x": 1}),
    ]


def test_table_columns_line_up_and_none_shows_as_a_dash() -> None:
    lines = table(("id", "state"), [("a", None), ("longer", "ok")]).splitlines()
    assert lines == ["id      state", "a       -", "longer  ok"]


def test_paths_of_a_configuration_file_count_from_the_file(tmp_path: Path) -> None:
    tree = {"target": {"path": "builtin:tiny"}, "data": {"prompts": "p.jsonl"}}
    assert from_folder(tree, tmp_path) == {
        "target": {"path": "builtin:tiny"},
        "data": {"prompts": str(tmp_path / "p.jsonl")},
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UnreachableError("x"), 3),
        (errors.IllegalTransition("x"), 4),
        (errors.NotFoundError("x"), 5),
        (errors.ConfigError("x"), 2),
        (errors.IntegrityError("x"), 1),
    ],
)
def test_documented_exit_codes(error: errors.MeshError, code: int) -> None:
    assert exit_code(error) == code


def test_a_misspelled_command_names_the_closest() -> None:
    group = SuggestingGroup("g", commands={"start": click.Command("start")})
    with pytest.raises(click.UsageError, match="Did you mean 'start'"):
        group.main(["strat"], standalone_mode=False)


@pytest.mark.parametrize(("text", "expected"), [("all", "all"), ("10,20", [10, 20])])
def test_checkpoints_argument(text: str, expected: object) -> None:
    assert parse_checkpoints(text) == expected


def test_wrong_checkpoints_argument_says_what_is_meant() -> None:
    with pytest.raises(click.BadParameter, match="latest"):
        parse_checkpoints("newest")


def test_demo_removes_its_own_folder_and_never_another(tmp_path: Path) -> None:
    mine, other = tmp_path / "demo", tmp_path / "other"
    prepare_folder(mine)
    (mine / "old").touch()
    prepare_folder(mine)
    assert not (mine / "old").exists() and (mine / "target" / "config.json").exists()
    other.mkdir()
    (other / "thesis.txt").touch()
    with pytest.raises(errors.ConflictError, match="not a demo's"):
        prepare_folder(other)
    assert (other / "thesis.txt").exists() and not (other / MARKER).exists()
    for run in ("the-demos", "a-persons"):
        (mine / "runs" / run).mkdir(parents=True)
    with pytest.raises(errors.ConflictError, match="holds 2 runs"):
        prepare_folder(mine)
    assert (mine / "runs" / "a-persons").exists()
    with pytest.raises(errors.EnvironmentFault, match="--dir"):
        prepare_folder(other / "thesis.txt" / "below")


@pytest.mark.parametrize("price", ["h200=abc", "h200", "=3", "h200=nan", "h200=-1"])
def test_a_price_that_is_none_is_a_usage_error(price: str) -> None:
    result = CliRunner().invoke(plan, ["--preset", "demo", "--price", price], obj=Api())
    assert result.exit_code == 2 and "GPU=USD" in result.output


def test_a_forecast_needs_no_control_plane() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        api = Api(f"http://127.0.0.1:{free.getsockname()[1]}")
    result = CliRunner().invoke(plan, ["--preset", "demo", "--gpu", "h200"], obj=api)
    api.close()
    assert result.exit_code == 0, result.output
    assert "computed on this machine" in result.output and "cost" in result.output


def test_demo_takes_another_port_when_the_wanted_one_is_in_use() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        taken = busy.getsockname()[1]
        assert choose_port(taken) not in (0, taken)


def test_a_reason_is_told_where_it_says_more_than_the_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for reason, told in (("paused", "r: paused"), ("no disk", "r: paused (no disk)")):
        _answer({"id": "r", "state": "paused", "reason": reason}, json_=False)
        assert capsys.readouterr().out.strip() == told


def test_a_run_is_described_with_rates_queues_and_time_left() -> None:
    run: dict[str, Any] = {
        "state": "running",
        "stage": "generate",
        "progress": {
            "completions_done": 10,
            "completions_total": 20,
            "step": 3,
            "steps_total": 30,
            "epoch": 2,
            "epochs_total": 4,
        },
        "throughput": {
            "generated_tokens_per_s": 15100.0,
            "target_tokens_per_s": 0.0,
            "trained_tokens_per_s": 50.0,
        },
        "queues": [{"name": "hidden_states", "depth": 2, "capacity": 16}],
        "loss": 1.2345,
        "accuracy": None,
        "eta_s": 90.0,
    }
    text = describe(run)
    for part in (
        "10/20",
        "3/30",
        "epoch 3 of 4",
        "15.1 Ktok/s",
        "50 tok/s",
        "hidden_states 2/16",
        "1.234",
    ):
        assert part in text
    assert "1 min 30 s left" in text
    assert text.startswith("running: generate")
    run["progress"]["completions_done"] = 20
    assert "15.1 Ktok/s" not in describe({**run, "stage": "train"})
    evaluating = describe({**run, "stage": "evaluate"})
    assert "running: evaluate" in evaluating and "left" not in evaluating
