"""`eval` starts the offline evaluator with everything that it was given."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from control_plane.cli import models
from workers.evaluator.offline import _parse


def test_every_option_reaches_the_evaluator(monkeypatch: pytest.MonkeyPatch):
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(models, "run_module", lambda *args: calls.append(args) or 0)
    given = {
        "--target": "builtin:tiny",
        "--drafter": "drafter",
        "--prompts": "p.jsonl",
        "--num-prompts": "3",
        "--max-new-tokens": "17",
        "--thinking": "on",
        "--dtype": "bfloat16",
        "--device": "cpu",
        "--num-threads": "2",
    }
    flags = ["--no-baselines", "--json"]
    options = {name for parameter in models.evaluate.params for name in parameter.opts}
    assert options == {*given, *flags}
    words = [word for pair in given.items() for word in pair]
    result = CliRunner().invoke(models.evaluate, [*words, *flags])
    assert result.exit_code == 0, result.output
    [(module, *arguments)] = calls
    assert module == "workers.evaluator.offline"
    assert vars(_parse(arguments)) == {
        "target": "builtin:tiny",
        "drafter": Path("drafter"),
        "prompts": "p.jsonl",
        "num_prompts": 3,
        "max_new_tokens": 17,
        "thinking": "on",
        "dtype": "bfloat16",
        "device": "cpu",
        "num_threads": 2,
        "baselines": False,
        "json": True,
    }
