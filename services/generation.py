"""What every generation engine takes and gives: prompt ids in, the target's own ids out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from shared.config.sampling import GeneratorSection


@dataclass(frozen=True)
class SamplingParameters:
    """temperature 0 is greedy; `eos_ids` end an answer."""

    max_new_tokens: int
    temperature: float
    top_p: float
    eos_ids: tuple[int, ...]

    @classmethod
    def of(cls, section: GeneratorSection, eos_ids: tuple[int, ...]) -> SamplingParameters:
        return cls(section.max_new_tokens, section.temperature, section.top_p, eos_ids)


@dataclass(frozen=True, slots=True)
class Answer:
    """Generated ids, end-of-turn included, and why generation stopped.

    `retokenised`: the engine gave text only, so the ids are the tokenizer's, not the engine's own.
    """

    output_ids: list[int]
    finish_reason: Literal["stop", "length"]
    retokenised: bool = False


def prompt_seed(run_seed: int, prompt_sha256: str, occurrence: int) -> int:
    """Sampling seed of a prompt, in [0, 2**62): depends on run, content and repeat alone."""
    text = f"{run_seed}:{prompt_sha256}:{occurrence}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2
