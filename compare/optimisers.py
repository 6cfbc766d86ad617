"""The optimisers that a training can use, and which of them have a predicted time axis."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from theory.errors import UserError, nearest

NAMES = ("sgd", "adam", "adamw")


@dataclass(frozen=True)
class Optimiser:
    """An optimiser of `torch.optim`, by name.

    **Arguments:**

    - `name`: "sgd", "adam" or "adamw".
    - `momentum`: μ of heavy-ball momentum, sgd alone: v ← μ v + g, θ ← θ − η v. One step then advances time by
      η / (1 − μ), to leading order in η.
    - `weight_decay`: λ. With sgd the gradient becomes g + λθ, which adds −λθ to the flow; adam takes λθ into the gradient
      before it is rescaled, adamw subtracts ηλθ beside it.
    - `betas`, `epsilon`: of adam and adamw.
    - `warmup`: share of the steps over which the learning rate of adam or adamw rises from 0; `final_ratio`: to what share of
      the learning rate it then falls, by half a cosine, until the last step. Not of sgd, whose time is learning rate × steps.

    **Raises:** `UserError` for an unknown name or a number out of range.
    """

    name: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    warmup: float = 0.0
    final_ratio: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UserError(f"unknown optimizer {self.name!r}; {nearest(str(self.name), NAMES)}")
        if not (_number(self.momentum) and 0 <= self.momentum < 1):
            raise UserError(f"momentum must lie in [0, 1), found {self.momentum!r}")
        if self.momentum and self.name != "sgd":
            raise UserError(f"momentum belongs to sgd: {self.name} has betas")
        if not (_number(self.weight_decay) and self.weight_decay >= 0):
            raise UserError(f"weight_decay must be a number of at least 0, found {self.weight_decay!r}")
        if len(self.betas) != 2 or not all(_number(beta) and 0 <= beta < 1 for beta in self.betas):
            raise UserError(f"betas must be two numbers in [0, 1), found {self.betas!r}")
        if not (_number(self.epsilon) and self.epsilon > 0):
            raise UserError(f"epsilon must be a positive number, found {self.epsilon!r}")
        if not (_number(self.warmup) and 0 <= self.warmup < 1):
            raise UserError(f"warmup is a share of the steps in [0, 1), found {self.warmup!r}")
        if not (_number(self.final_ratio) and 0 <= self.final_ratio <= 1):
            raise UserError(f"final_ratio is a share of the learning rate in [0, 1], found {self.final_ratio!r}")
        if self.scheduled and self.name == "sgd":
            raise UserError("warmup and final_ratio belong to adam and adamw: with sgd, time is learning rate × steps")

    @property
    def scheduled(self) -> bool:
        """Whether the learning rate changes from step to step."""
        return self.warmup > 0 or self.final_ratio < 1

    def rate_factor(self, step: int, steps: int) -> float:
        """By what the learning rate is multiplied in the step `step` → `step` + 1 of a training of `steps` steps."""
        rising = self.warmup * steps
        if step + 1 < rising:
            return (step + 1) / rising
        share = min(1.0, (step + 1 - rising) / (steps - rising)) if steps > rising else 1.0
        return self.final_ratio + (1 - self.final_ratio) * 0.5 * (1 + math.cos(math.pi * share))

    @property
    def predicts_time(self) -> bool:
        """Whether gradient flow predicts where this optimiser is after so many steps."""
        return self.name == "sgd"

    @property
    def time_axis(self) -> str:
        """What the times of a training with it mean, in words."""
        if not self.predicts_time:
            return f"no predicted time axis: {self.name} is not gradient flow; times are learning rate × steps"
        return "learning rate × steps" + (f" / (1 − {self.momentum:g})" if self.momentum else "")

    def build(self, parameters: Iterable[torch.nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
        """The torch optimiser of these parameters."""
        if self.name == "sgd":
            return torch.optim.SGD(parameters, lr=learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.Adam if self.name == "adam" else torch.optim.AdamW
        return kind(parameters, lr=learning_rate, betas=self.betas, eps=self.epsilon, weight_decay=self.weight_decay)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, those that this optimiser uses."""
        own = ("momentum", "weight_decay") if self.name == "sgd" else ("weight_decay", "betas", "epsilon")
        own = (*own, "warmup", "final_ratio") if self.scheduled else own
        values = asdict(self) | {"betas": list(self.betas)}
        return {"name": self.name} | {key: values[key] for key in own}


def as_optimiser(optimizer: str | Optimiser) -> Optimiser:
    """An `Optimiser` from one or from its name."""
    return optimizer if isinstance(optimizer, Optimiser) else Optimiser(optimizer)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
