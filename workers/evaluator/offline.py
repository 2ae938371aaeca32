"""`python -m workers.evaluator.offline`: acceptance length of folders, without a control plane.

Prints a short table, or the result as JSON. Exit code 2 when an input is unusable, 1 when the
output differs from the target's own greedy output.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from services.builtin import target_folder
from services.data.prompts import PromptRow
from services.data.source import read_prompts
from services.data.tokenizer import TargetTokenizer
from services.target_models.untrained import untrained_drafter
from shared.config.data import DataSection
from shared.dflash.export import load_drafter
from shared.dflash.target import TargetModel
from shared.errors import MeshError
from workers.evaluator.measure import EvaluationSettings, measure
from workers.evaluator.prompts import render
from workers.evaluator.worker import usable_device

EXIT_EQUAL, EXIT_UNEQUAL, EXIT_UNUSABLE = 0, 1, 2
BUILTIN_PROMPTS_SEED = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments name; the exit code."""
    given = _parse(arguments)
    try:
        result = run(given)
    except MeshError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_UNUSABLE
    if given.json:
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    else:
        sys.stdout.write(_table(result))
    return EXIT_EQUAL if result["equal_to_greedy"] else EXIT_UNEQUAL


def run(given: argparse.Namespace) -> dict[str, Any]:
    """The result as a dictionary; raises MeshError."""
    if given.num_threads is not None:
        torch.set_num_threads(given.num_threads)
    folder = target_folder(given.target)
    device = usable_device(given.device)
    rows = _rows(given.prompts, given.num_prompts)
    model = load_drafter(given.drafter, device=device)
    tokenizer = TargetTokenizer.load(folder)
    target = TargetModel.load(folder, given.dtype, device)
    thinking = {"on": True, "off": False, "template": None}[given.thinking]
    untrained = untrained_drafter(model.config, seed=0)
    return measure(
        target,
        model.to(dtype=target.dtype),
        render(rows, tokenizer, thinking=thinking, room=target.max_length),
        EvaluationSettings(given.max_new_tokens, tokenizer.eos_ids, given.baselines),
        untrained=untrained.to(device, target.dtype).eval(),
        decode=tokenizer.decode,
    )


def _rows(prompts: str, num_prompts: int) -> list[PromptRow]:
    data = DataSection(prompts=prompts, num_prompts=num_prompts)
    return read_prompts(data, seed=BUILTIN_PROMPTS_SEED)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m workers.evaluator.offline", description="Acceptance length of a drafter."
    )
    parser.add_argument("--target", required=True, help="target folder, or builtin:tiny")
    parser.add_argument("--drafter", required=True, type=Path, help="exported drafter folder")
    parser.add_argument(
        "--prompts",
        required=True,
        help="file, folder or glob of prompts (as data.prompts), or builtin:tiny",
    )
    parser.add_argument("--num-prompts", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--thinking", choices=("on", "off", "template"), default="template")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--no-baselines", dest="baselines", action="store_false")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(arguments)


def _table(result: dict[str, Any]) -> str:
    equal = "yes" if result["equal_to_greedy"] else f"no, {result['num_unequal']} differ"
    rows = [
        ("acceptance length (tokens / verifications)", result["acceptance_length"]),
        ("mean of prompt means", result["acceptance_length_mean_of_prompts"]),
        ("output equal to greedy", equal),
        ("prompts", result["num_prompts"]),
        ("tokens", result["generated_tokens"]),
        ("tokens/s", result["tokens_per_s"]),
    ]
    num = result.get("baselines_num_prompts")
    rows += [
        (f"{name.replace('_', ' ')} (first {num} prompts)", value)
        for name, value in result["baselines"].items()
    ]
    if result["target_score"] is not None:
        right = result["target_score"]
        rows.append(("target's right answers", f"{right['correct']} of {right['total']}"))
    return "".join(f"{label:<45} {value}\n" for label, value in rows)


if __name__ == "__main__":
    sys.exit(main())
