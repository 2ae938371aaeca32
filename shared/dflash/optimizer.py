"""AdamW with float32 master weights, and the learning rate as a pure function of the step.

When the model computes in half precision, the optimizer keeps a float32 copy of every weight, steps
that, and copies it back: small updates are not lost to rounding. A float32 model is stepped
directly. Gradients arrive as unnormalised sums; `step` divides them once, by what the objective
says, and clips what is left. Everything `state_dict` holds is enough to go on bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import DrafterError


def learning_rate(step: int, total_steps: int, peak: float, warmup_ratio: float) -> float:
    """Rate for optimizer step `step`, counted from 0.

    Linear from peak / warm-up steps to the peak over the first warmup_ratio of the run, then half a
    cosine towards 0, which would be reached at `total_steps`. A pure function, so that a restart
    needs only the step number.
    """
    if total_steps < 1 or not 0 <= warmup_ratio < 1:
        raise ValueError(
            f"total_steps {total_steps} must be at least 1 and warmup_ratio {warmup_ratio} in "
            "[0, 1)"
        )
    warmup = math.ceil(total_steps * warmup_ratio)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    return peak * 0.5 * (1 + math.cos(math.pi * progress))


class DrafterOptimizer:
    """Steps a model's trainable parameters; the model's weights always follow the masters."""

    def __init__(
        self,
        model: nn.Module,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
    ) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._has_masters = any(p.dtype != torch.float32 for p in self._parameters)
        self._masters = (
            [p.detach().float().clone() for p in self._parameters]
            if self._has_masters
            else self._parameters
        )
        self._max_grad_norm = max_grad_norm
        self._adam = torch.optim.AdamW(
            self._masters, lr=0.0, betas=betas, eps=eps, weight_decay=weight_decay
        )

    def step(self, rate: float, divisor: float | Tensor = 1.0) -> float:
        """Divide the gradients by `divisor`, clip them to max_grad_norm, update at `rate`.

        Returns the gradient norm before clipping, over all parameters; nan or infinity when a
        gradient was not finite, in which case nothing changes. Gradients are cleared either way. On
        several ranks the gradients must have been summed over them before.
        """
        for master, parameter in zip(self._masters, self._parameters, strict=True):
            if parameter.grad is None:
                continue
            gradient = parameter.grad.float() if self._has_masters else parameter.grad
            master.grad = gradient.div_(divisor)
        gradients = [master.grad for master in self._masters if master.grad is not None]
        assert gradients, "step follows a backward pass"
        norm = float(nn.utils.get_total_norm(gradients))
        if math.isfinite(norm):
            nn.utils.clip_grads_with_norm_(
                self._masters, self._max_grad_norm, torch.tensor(norm, device=gradients[0].device)
            )
            for group in self._adam.param_groups:
                group["lr"] = rate
            self._adam.step()
            self._publish()
        self.zero_grad()
        return norm

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for tensor in (*self._masters, *self._parameters):
            tensor.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts by parameter name, and the masters where there are any."""
        moments = {
            name: {key: value.detach().clone() for key, value in self._adam.state[master].items()}
            for name, master in zip(self._names, self._masters, strict=True)
            if master in self._adam.state
        }
        masters = (
            {n: m.detach().clone() for n, m in zip(self._names, self._masters, strict=True)}
            if self._has_masters
            else {}
        )
        return {"moments": moments, "masters": masters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`. The model's float32 weights must have been loaded before.

        Raises DrafterError when the state belongs to other parameters or another compute dtype.
        """
        unknown = sorted(set(state["moments"]) - set(self._names))
        if unknown:
            raise DrafterError(f"the optimizer state is of another drafter: it holds {unknown[:5]}")
        wanted = set(self._names) if self._has_masters else set()
        if set(state["masters"]) != wanted:
            raise DrafterError(
                "the optimizer state was saved with another compute dtype "
                f"({'with' if state['masters'] else 'without'} float32 masters); resume with the "
                "same trainer.dtype"
            )
        with torch.no_grad():
            for name, master in zip(self._names, self._masters, strict=True):
                if self._has_masters:
                    master.copy_(state["masters"][name])
                moments = state["moments"].get(name)
                if moments is not None:
                    self._adam.state[master] = {
                        # The step count stays where AdamW keeps it; the moments follow the weight.
                        key: value.clone() if key == "step" else value.to(master.device, copy=True)
                        for key, value in moments.items()
                    }
        if self._has_masters:
            self._publish()

    def flat_state(self) -> dict[str, Tensor]:
        """`state_dict` as flat names (`moments.NAME/KEY`, `masters.NAME`), for safetensors."""
        state = self.state_dict()
        flat = {f"masters.{name}": value for name, value in state["masters"].items()}
        for name, moments in state["moments"].items():
            flat |= {f"moments.{name}/{key}": value for key, value in moments.items()}
        return flat

    def load_flat_state(self, flat: dict[str, Tensor]) -> None:
        """Inverse of `flat_state`."""
        state: dict[str, dict[str, Any]] = {"moments": {}, "masters": {}}
        for key, value in flat.items():
            kind, _, name = key.partition(".")
            if kind == "masters":
                state["masters"][name] = value
            else:
                name, _, field = name.rpartition("/")
                state["moments"].setdefault(name, {})[field] = value
        self.load_state_dict(state)

    @torch.no_grad()
    def _publish(self) -> None:
        if self._has_masters:
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                parameter.copy_(master)
