"""Acceptance length of a drafter, its baselines, and the target's score: the whole measurement.

    greedy answers (batched) -> speculative answers, one prompt at a time -> compare, count
                             -> untrained drafter and prompt lookup on the first few prompts

Greedy speculative decoding must give the target's own greedy tokens. The reference answers are
decoded in a batch, which is much faster; where one differs, the prompt is decoded plainly once
more, since a batch may round a near tie the other way, and that answer decides.
Baselines go through the same verification loop on fewer prompts, because an untrained drafter
saves nothing; the result says on how many, and what the trained drafter has on the same ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shared.dflash.acceptance import AcceptanceResult, PromptResult
from shared.dflash.decoding import generate_group
from shared.dflash.drafters import DFlashDrafter, Drafter
from shared.dflash.model import DFlashDraftModel
from shared.dflash.prompt_lookup import PromptLookupDrafter
from shared.dflash.speculative import greedy_generate, speculative_generate
from shared.dflash.target import TargetModel
from shared.tiny_target import score
from workers.evaluator.prompts import EvaluationPrompt

GREEDY_GROUP = 32
BASELINE_SHARE = 1 / 8
MIN_BASELINE_PROMPTS = 4

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class EvaluationSettings:
    """max_new_tokens an answer; eos_ids end it; baselines: untrained drafter and prompt lookup."""

    max_new_tokens: int
    eos_ids: Collection[int]
    baselines: bool = True


def measure(
    target: TargetModel,
    draft_model: DFlashDraftModel,
    prompts: Sequence[EvaluationPrompt],
    settings: EvaluationSettings,
    *,
    untrained: DFlashDraftModel | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
    on_progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """The result of an evaluation as a JSON-able dictionary.

    draft_model and untrained: on the target's device. decode: token ids to text, for the target's
    score where prompts carry a problem. on_progress(done, total): prompts decoded, baselines
    included. Raises DrafterError when the drafter does not fit the target.
    """
    draft_model.config.require_fit(target.shape)
    baseline_prompts = prompts[: _num_baseline_prompts(len(prompts), settings)]
    total = len(prompts) + 2 * len(baseline_prompts)
    counted = _Counted(on_progress, total)

    greedy = _greedy_answers(target, prompts, settings)
    started_s = time.monotonic()
    drafter = DFlashDrafter(draft_model, target.head)
    results = _decode(target, drafter, prompts, greedy, settings, counted)
    elapsed_s = time.monotonic() - started_s
    accepted = AcceptanceResult(results)
    num_unequal = len(results) - accepted.num_equal_to_greedy
    result: dict[str, Any] = {
        "acceptance_length": _number(accepted.acceptance_length),
        "acceptance_length_mean_of_prompts": _number(accepted.mean_of_prompt_means),
        "acceptance_length_drafts": _number(accepted.drafts_accepted_length),
        "num_prompts": len(prompts),
        "generated_tokens": accepted.generated_tokens,
        "verification_steps": accepted.verification_steps,
        "equal_to_greedy": num_unequal == 0,
        "num_unequal": num_unequal,
        "block_size": draft_model.config.block_size,
        "max_new_tokens": settings.max_new_tokens,
        "tokens_per_s": round(accepted.generated_tokens / max(elapsed_s, 1e-9), 1),
        "target_score": _target_score(prompts, greedy, decode),
        "baselines": {},
    }
    if baseline_prompts:
        first = AcceptanceResult(results[: len(baseline_prompts)])
        drafters: dict[str, Drafter] = {
            "prompt_lookup": PromptLookupDrafter(draft_model.config.block_size - 1)
        }
        if untrained is not None:
            drafters["untrained"] = DFlashDrafter(untrained, target.head)
        for name, baseline in drafters.items():
            decoded = _decode(target, baseline, baseline_prompts, greedy, settings, counted)
            result["baselines"][name] = _number(AcceptanceResult(decoded).acceptance_length)
        result["baselines_num_prompts"] = len(baseline_prompts)
        result["acceptance_length_on_baseline_prompts"] = _number(first.acceptance_length)
    return result


class _Counted:
    def __init__(self, on_progress: Progress, total: int) -> None:
        self._on_progress, self._total, self._done = on_progress, total, 0

    def one_done(self) -> None:
        self._done += 1
        self._on_progress(self._done, self._total)


def _greedy_answers(
    target: TargetModel, prompts: Sequence[EvaluationPrompt], settings: EvaluationSettings
) -> list[list[int]]:
    answers = []
    for start in range(0, len(prompts), GREEDY_GROUP):
        group = [prompt.token_ids for prompt in prompts[start : start + GREEDY_GROUP]]
        generated = generate_group(
            target,
            group,
            settings.max_new_tokens,
            temperature=0.0,
            top_p=1.0,
            seeds=[0] * len(group),
            eos_ids=settings.eos_ids,
        )
        answers += [one.token_ids for one in generated]
    return answers


def _decode(
    target: TargetModel,
    drafter: Drafter,
    prompts: Sequence[EvaluationPrompt],
    greedy: Sequence[list[int]],
    settings: EvaluationSettings,
    counted: _Counted,
) -> list[PromptResult]:
    results = []
    for prompt, reference in zip(prompts, greedy, strict=False):
        ids, room, eos = prompt.token_ids, settings.max_new_tokens, settings.eos_ids
        result = speculative_generate(target, drafter, ids, room, eos)
        is_equal = result.token_ids == reference
        if not is_equal:
            is_equal = result.token_ids == greedy_generate(target, ids, room, eos).token_ids
        results.append(replace(result, equal_to_greedy=is_equal))
        counted.one_done()
    return results


def _target_score(
    prompts: Sequence[EvaluationPrompt],
    greedy: Sequence[list[int]],
    decode: Callable[[Sequence[int]], str] | None,
) -> dict[str, int] | None:
    """Right answers of the target among the prompts whose right answer is known."""
    if decode is None:
        return None
    marks = [
        score(prompt.problem, decode(answer))
        for prompt, answer in zip(prompts, greedy, strict=True)
        if prompt.problem is not None
    ]
    return {"correct": sum(marks), "total": len(marks)} if marks else None


def _num_baseline_prompts(num_prompts: int, settings: EvaluationSettings) -> int:
    if not settings.baselines:
        return 0
    return min(num_prompts, max(MIN_BASELINE_PROMPTS, round(num_prompts * BASELINE_SHARE)))


def _number(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
