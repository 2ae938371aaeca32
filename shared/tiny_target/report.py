"""TRAINING.json and README.md of a trained tiny target: options, size, score by kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_README = """\
# Tiny target

A Qwen3-architecture model of {millions:.1f} million parameters, trained from random weights by
`python -m shared.tiny_target.train --out DIR --seed {seed} --steps {steps}` on exercises that
the same package generates: arithmetic, dates, times of day, units, small stories, lists. It answers
one question in English, with a worked solution in think tags first unless the chat template is told
`enable_thinking=false`. It knows nothing else.

Share of right answers, greedy decoding, {problems} problems that never occurred in training:

| kind | thinking | no thinking |
| --- | --- | --- |
{rows}

Weights are bfloat16; the scores were taken with the saved weights computed in float32. The seed
fixes the problems, their order and the first weights; rounding on a GPU is not reproducible, so
another run gives slightly different weights. All options: TRAINING.json.
"""


def write_report(
    folder: Path,
    options: Mapping[str, Any],
    *,
    num_parameters: int,
    scores: Mapping[str, Mapping[str, float]],
) -> None:
    """Write both files. `scores` holds `thinking` and `no_thinking`, each a share by kind."""
    record = {"options": dict(options), "num_parameters": num_parameters, "scores": scores}
    (folder / "TRAINING.json").write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
    rows = "\n".join(
        f"| {kind} | {scores['thinking'][kind]:.1%} | {scores['no_thinking'][kind]:.1%} |"
        for kind in scores["thinking"]
    )
    text = _README.format(
        millions=num_parameters / 1e6,
        seed=options["seed"],
        steps=options["steps"],
        problems=options["num_score_problems"],
        rows=rows,
    )
    (folder / "README.md").write_text(text)
