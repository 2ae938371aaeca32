"""Batched generation with the target in this process, for machines without a server.

An answer depends on its prompt, its seed, and the prompts of its group (padding shifts floating
point results), so equal groups give equal answers: that makes a restarted generator's log the same
as an undisturbed one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from services.generation import Answer, SamplingParameters
from shared.dflash.decoding import generate_group
from shared.dflash.target import TargetModel
from shared.errors import EnvironmentFault


class EmbeddedEngine:
    """One target on one device. Not safe for use by several threads at once."""

    def __init__(self, target: TargetModel, *, num_threads: int | None = None) -> None:
        self._target = target
        self._num_threads = num_threads

    @classmethod
    def load(
        cls, folder: Path, *, dtype: str, device: str = "auto", num_threads: int | None = None
    ) -> EmbeddedEngine:
        """Load the target; TargetModelError when it cannot be, EnvironmentFault for the device."""
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        name = resolve_device(device)
        return cls(TargetModel.load(folder, dtype=dtype, device=name), num_threads=num_threads)

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt that leaves room for one token of answer."""
        return self._target.shape.max_position_embeddings - 1

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: SamplingParameters
    ) -> list[Answer]:
        """One answer for each prompt, in order; blocks until all are done."""
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        generated = generate_group(
            self._target,
            prompts,
            sampling.max_new_tokens,
            sampling.temperature,
            sampling.top_p,
            seeds,
            sampling.eos_ids,
        )
        return [Answer(list(one.token_ids), one.finish_reason) for one in generated]


def resolve_device(device: str) -> str:
    """'auto' is the first GPU if there is one; EnvironmentFault for a GPU that is not there."""
    if device == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise EnvironmentFault(f"device {device!r} is configured, but torch sees no GPU here")
    return device
