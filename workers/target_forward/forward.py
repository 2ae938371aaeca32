"""One micro-batch through the frozen target: packed tokens in, packed hidden states out.

    packed ids -> rows [B, padded_length] -> target up to its last captured layer -> packed states

Stateless: the same micro-batch gives the same states whichever worker computes it, however often.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shared.dflash.target import TargetModel
from shared.errors import DataError, TargetModelError
from workers.target_forward.packing import nonfinite_rows, pad_rows, strip_rows


@dataclass(frozen=True)
class ForwardResult:
    """target_hidden_states: [num_tokens, K H] on the CPU, in the target's dtype."""

    target_hidden_states: Tensor
    nonfinite_rows: list[int]
    forward_s: float


class TargetForward:
    """The target of one worker. `run` is synchronous: call it in a thread."""

    def __init__(
        self, folder: Path, target_layer_ids: Sequence[int], *, dtype: str, device: str
    ) -> None:
        self.device = resolve_device(device)
        self.target_layer_ids = list(target_layer_ids)
        self.target = TargetModel.load(folder, dtype, self.device)
        highest = max(self.target_layer_ids)
        if highest >= self.target.num_layers:
            raise TargetModelError(
                f"drafter.target_layer_ids asks for layer {highest}, but the target in {folder} "
                f"has {self.target.num_layers} layers, numbered from 0"
            )

    def run(self, input_ids: Tensor, lengths: Sequence[int], padded_length: int) -> ForwardResult:
        """Hidden states of packed samples.

        input_ids: int64 [num_tokens] on the CPU. Raises DataError when an id lies outside the
        target's vocabulary.
        """
        started_s = time.monotonic()
        vocab_size = self.target.shape.vocab_size
        if int(input_ids.min()) < 0 or int(input_ids.max()) >= vocab_size:
            raise DataError(
                f"a sample holds token id {int(input_ids.max())}, but the target's vocabulary has "
                f"{vocab_size} ids; the data set was made with another tokenizer"
            )
        rows = pad_rows(input_ids, lengths, padded_length).to(self.device)
        with torch.inference_mode():
            states = self.target.hidden_states(rows, list(lengths), self.target_layer_ids)
            packed = strip_rows(states, lengths).to("cpu")
        bad = nonfinite_rows(packed, lengths)
        return ForwardResult(packed, bad, time.monotonic() - started_s)


def resolve_device(device: str) -> str:
    """'auto' becomes 'cuda' where there is one, else 'cpu'."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"
