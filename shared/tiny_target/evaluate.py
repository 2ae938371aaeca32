"""How well a tiny target answers: batched greedy generation, scored by kind of problem."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from shared.tiny_target.problems import Problem, score

MAX_NEW_TOKENS = 256


def load_target(folder: Path, *, device: str = "cpu") -> tuple[Any, Any]:
    """The model in float32, in evaluation mode, and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval().to(device), tokenizer


@torch.inference_mode()
def generate_answers(
    model: Any,
    tokenizer: Any,
    problems: Sequence[Problem],
    *,
    thinking: bool,
    batch_size: int = 64,
) -> list[str]:
    """The greedy answer to every problem, in order, as text without control tokens.

    Think tags stay in the text. An answer that reaches MAX_NEW_TOKENS is cut there.
    """
    answers: list[str] = []
    for start in range(0, len(problems), batch_size):
        prompts = [
            tokenizer.apply_chat_template(
                list(problem.messages),
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=thinking,
            )
            for problem in problems[start : start + batch_size]
        ]
        inputs = tokenizer(
            prompts,
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=False,
        ).to(model.device)
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
        )
        replies = output[:, inputs["input_ids"].shape[1] :]
        answers += tokenizer.batch_decode(replies, skip_special_tokens=True)
    return answers


def score_by_kind(problems: Sequence[Problem], answers: Sequence[str]) -> dict[str, float]:
    """Share of right answers for each kind of problem, and under `all` for the whole list."""
    right: dict[str, list[bool]] = defaultdict(list)
    for problem, answer in zip(problems, answers, strict=True):
        passed = score(problem, answer)
        right[problem.kind].append(passed)
        right["all"].append(passed)
    return {kind: round(sum(marks) / len(marks), 4) for kind, marks in sorted(right.items())}
