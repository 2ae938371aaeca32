"""The tiny target: a small Qwen3-architecture model that solves small problems step by step.

`model_folder()` is the trained model with its tokenizer, in the form that transformers, vLLM and
SGLang load. `demo_prompts()` makes prompts for it. `train.py` is the script that made it, and
`model/README.md` says with which seed and how well it answers. Importing this package loads no
torch.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from shared.tiny_target.problems import Problem, make_problems, score

__all__ = ["DEMO_KINDS", "Problem", "demo_prompts", "make_problems", "model_folder", "score"]

# Ten of the eighteen kinds: a drafter that trains for a minute on some 400 answers must meet each
# form of answer often. The other kinds have more words, and more forms, to learn.
DEMO_KINDS = (
    "addition",
    "subtraction",
    "multiplication",
    "division",
    "series",
    "weekday",
    "arrival",
    "time_between",
    "sorting",
    "spread",
)


def model_folder() -> Path:
    """The folder of the shipped model: config, weights, tokenizer, chat template, scores."""
    return Path(str(files("shared.tiny_target"))) / "model"


def demo_prompts(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows for a prompts file: `id`, `kind`, `messages` (OpenAI chat messages) and `answer`.

    The problems are of DEMO_KINDS. Every one is a problem that the shipped model never saw in
    training, and no row repeats another's problem, so any split of the rows is a split by problem.

    Raises:
        ValueError: if there are not that many different problems.
    """
    return [
        {
            "id": problem.id,
            "kind": problem.kind,
            "messages": [dict(message) for message in problem.messages],
            "answer": problem.answer,
        }
        for problem in make_problems(seed, count, kinds=DEMO_KINDS)
    ]
