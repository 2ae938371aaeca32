"""When a loss counts as diverging, and when skipped steps are too many. Pure.

The loss of a step is compared with the best running mean so far: a mean over the last
`WINDOW_STEPS` losses, of which the lowest is remembered. The state travels with checkpoints, so a
restart judges as an undisturbed run would.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

WINDOW_STEPS = 20


@dataclass
class LossWatchdog:
    """factor: how many times the best running mean a running mean may reach."""

    factor: float
    nonfinite_limit: int
    best_mean: float | None = None
    num_nonfinite: int = 0
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))

    def observe(self, loss: float) -> str | None:
        """Take the finite loss of a step; a sentence when it is diverging, else None."""
        self.losses.append(loss)
        if len(self.losses) < WINDOW_STEPS:
            return None
        mean = sum(self.losses) / len(self.losses)
        if self.best_mean is None or mean < self.best_mean:
            self.best_mean = mean
        if mean <= self.factor * self.best_mean:
            return None
        self.losses.clear()  # speak once for each divergence, not at every step of it
        return (
            f"the loss diverges: its mean over {WINDOW_STEPS} steps is {mean:.4g}, "
            f"{mean / self.best_mean:.1f} times its best of {self.best_mean:.4g} "
            f"(trainer.divergence_factor is {self.factor:g}); lower trainer.lr or look at the data"
        )

    def observe_nonfinite(self) -> str | None:
        """Count a skipped step; a sentence when there have been too many, else None."""
        self.num_nonfinite += 1
        if self.num_nonfinite < self.nonfinite_limit:
            return None
        return (
            f"{self.num_nonfinite} steps had a loss or gradient that is not finite "
            f"(trainer.nonfinite_steps_limit is {self.nonfinite_limit}); lower trainer.lr, or use "
            "a wider trainer.dtype, and resume from an earlier checkpoint"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "best_mean": self.best_mean,
            "num_nonfinite": self.num_nonfinite,
            "losses": list(self.losses),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of `to_dict`."""
        self.best_mean = state["best_mean"]
        self.num_nonfinite = state["num_nonfinite"]
        self.losses = deque(state["losses"], maxlen=WINDOW_STEPS)
