"""What is trained, as a torch module: an architecture's expression read by torch, or a model that torch code defines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, Protocol

import numpy as np
import torch

from theory import interpret
from theory.errors import UserError, nearest
from theory.language import Architecture, ParameterSpec

Precision = Literal["float64", "float32"]
DTYPES = {"float64": torch.float64, "float32": torch.float32}
DEVICES = ("cpu", "cuda")


class Model(Protocol):
    """What a training asks of a model: an `Architecture`, or one that torch code defines (`compare.language_models`)."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, ParameterSpec]: ...
    @property
    def labels_per_position(self) -> bool: ...
    def root(self, axis: str) -> str: ...
    def trained(self, frozen: Collection[str] = ()) -> tuple[str, ...]: ...


class TorchModel(Model, Protocol):
    """A model that torch code defines.

    `kept`: the parameters that a training saves and its trajectory has, unless others are asked for; `module`: the torch
    module at given arrays.
    """

    @property
    def kept(self) -> tuple[str, ...]: ...

    def module(
        self,
        initial: Mapping[str, np.ndarray],
        *,
        dtype: Precision = "float64",
        device: str = "cpu",
        frozen: Collection[str] = (),
    ) -> TrainedModule: ...


def module_of(model: Model, initial: Mapping[str, np.ndarray], **options: Any) -> TrainedModule:
    """The torch module of a model at the arrays `initial`; `options`: those of `ArchitectureModule`."""
    if isinstance(model, Architecture):
        return ArchitectureModule(model, initial, **options)
    return model.module(initial, **options)  # pyright: ignore[reportAttributeAccessIssue]


class TrainedModule(torch.nn.Module):
    """A torch module whose parameters go by the names of its `model`; subclasses make them, and say what logits are."""

    model: Model

    def named(self) -> dict[str, torch.nn.Parameter]:
        """The parameters by the model's names."""
        return dict(self.named_parameters())

    def load(self, initial: Mapping[str, np.ndarray]) -> None:
        """Copy one array into each parameter, bit for bit in float64.

        **Raises:** `UserError` when an array is missing, unknown or of another shape.
        """
        check_names(self.model, initial)
        with torch.no_grad():
            for name, parameter in self.named().items():
                array = np.array(initial[name], dtype=np.float64)
                if array.shape != tuple(parameter.shape):
                    raise UserError(
                        f"parameter {name!r} has shape {tuple(parameter.shape)}, "
                        f"but the array given for it has shape {array.shape}"
                    )
                parameter.copy_(torch.from_numpy(array))

    def arrays(self, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """The parameters now, all or those of `names`, as float64 numpy copies by name."""
        return {
            name: parameter.detach().cpu().numpy().astype(np.float64)
            for name, parameter in self.named().items()
            if names is None or name in names
        }

    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters that are not frozen."""
        return [parameter for parameter in self.named().values() if parameter.requires_grad]

    def loss(self, tokens: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Σ_s weights_s · mean over positions of −log softmax(f)_y (natural logarithm)."""
        return interpret.loss_of_logits(self(tokens), labels, weights, xp=torch)


class ArchitectureModule(TrainedModule):
    """A trainable torch module whose forward pass is `theory.interpret` over torch.

    **Arguments:**

    - `architecture`: what to train.
    - `initial`: one float array for each parameter, by name; the arrays are copied, and in
      float64 `arrays()` gives them back bit for bit.
    - `dtype`: "float64", or "float32" (the arrays are then rounded to single precision).
    - `device`: "cpu", or "cuda" where torch sees one.
    - `frozen`: names of parameters that are not trained.

    The parameters keep the architecture's names, so `state_dict()` has exactly those keys.

    **Raises:** `UserError` for a missing, unknown or misshapen array, for an unknown `dtype` or `device`, for
    `frozen` naming no parameter or all of them, and for a parameter whose name torch keeps for itself.
    """

    def __init__(
        self,
        architecture: Architecture,
        initial: Mapping[str, np.ndarray],
        *,
        dtype: Precision = "float64",
        device: str = "cpu",
        frozen: Collection[str] = (),
    ):
        super().__init__()
        check_dtype(dtype)
        check_device(device)
        trained = architecture.trained(frozen)
        self.architecture = self.model = architecture
        check_names(architecture, initial)
        for name in architecture.parameters:
            if hasattr(self, name):
                raise UserError(
                    f"torch modules have an attribute called {name!r} already: give this "
                    f"parameter of {architecture.name!r} another name"
                )
            values = torch.zeros(np.shape(initial[name]), dtype=DTYPES[dtype], device=device)
            self.register_parameter(name, torch.nn.Parameter(values, requires_grad=name in trained))
        self.load(initial)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (sample[, position], label) of `tokens` (sample, position)."""
        return interpret.evaluate(self.architecture, dict(self.named_parameters()), tokens, xp=torch)


def check_dtype(dtype: str) -> None:
    """**Raises:** `UserError` for an unknown precision."""
    if dtype not in DTYPES:
        raise UserError(f"unknown dtype {dtype!r}; {nearest(str(dtype), DTYPES)}")


def check_device(device: str) -> None:
    """**Raises:** `UserError` for a device that is unknown or not there."""
    if device not in DEVICES:
        raise UserError(f"unknown device {device!r}; {nearest(str(device), DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device 'cuda' was asked for, but torch sees no CUDA device here: leave device at 'cpu'")


def check_names(model: Model, initial: Mapping[str, np.ndarray]) -> None:
    """**Raises:** `UserError` for an array of no parameter, or a parameter without an array."""
    for name in initial:
        if name not in model.parameters:
            raise UserError(f"{model.name} has no parameter {name!r}; {nearest(name, model.parameters)}")
    for name in model.parameters:
        if name not in initial:
            raise UserError(f"no initial array is given for parameter {name!r}")
