"""Language models that other people's torch code defines, trained through `compare.train` like any architecture."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from compare.module import DTYPES, Precision, TrainedModule, check_device, check_dtype, check_names
from theory.errors import UserError, nearest
from theory.language import LABEL, TOKEN, ParameterSpec

EMBEDDING, UNEMBEDDING = "E", "U"
_OURS = {"model.embed_tokens.weight": EMBEDDING, "lm_head.weight": UNEMBEDDING}
# The axes of each kind of tensor, by the part of its name before ".weight" or ".bias"; a bias has the first one.
_AXES = {
    "embed_tokens": (TOKEN, "embed"),
    "lm_head": (LABEL, "embed"),
    "q_proj": ("query", "embed"),
    "k_proj": ("key", "embed"),
    "v_proj": ("value", "embed"),
    "o_proj": ("embed", "query"),
    "gate_proj": ("hidden", "embed"),
    "up_proj": ("hidden", "embed"),
    "down_proj": ("embed", "hidden"),
}


@dataclass(frozen=True)
class Qwen2:
    """The Qwen2 architecture of `transformers`, with random weights: pre-norm RMSNorm, rotary positions, SwiGLU.

    **Arguments:** `vocabulary`: V, of tokens and labels; `width`: of the embedding; `layers`; `heads`; `key_value_heads`:
    fewer than `heads` for grouped queries, by default as many; `hidden`: width of the MLP, by default 4 × `width`; `length`:
    the longest sequence; `tied`: whether the unembedding is the embedding.

    `E` (token, embed) and `U` (label, embed) are embedding and unembedding; the others are called as in `transformers`, whose
    norms work in float32 even where the parameters are float64.

    **Raises:** `UserError` for a number out of range. The package `transformers` is needed from the first use on.
    """

    vocabulary: int
    width: int = 128
    layers: int = 2
    heads: int = 4
    key_value_heads: int | None = None
    hidden: int | None = None
    length: int = 512
    tied: bool = False
    name: str = "qwen2"

    labels_per_position = True

    def __post_init__(self) -> None:
        for key in ("vocabulary", "width", "layers", "heads", "key_value_heads", "hidden", "length"):
            value = getattr(self, key)
            if value is None and key in ("key_value_heads", "hidden"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise UserError(f"{key} of {self.name} must be a whole number of at least 1, found {value!r}")
        if self.width % (2 * self.heads):
            raise UserError(
                f"the width of {self.name} must be a multiple of 2 × heads = {2 * self.heads} (rotary positions turn pairs "
                f"within a head), found {self.width}"
            )
        if self.heads % (self.key_value_heads or self.heads):
            raise UserError(
                f"the heads of {self.name} must be a multiple of key_value_heads, found {self.heads} and {self.key_value_heads}"
            )

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter."""
        with torch.device("meta"):
            made = self._made()
        return {_ours(name): tuple(value.shape) for name, value in made.named_parameters()}

    @property
    def parameters(self) -> Mapping[str, ParameterSpec]:
        """The axes of each parameter; those that do not start small (gains of norms) have weight 0."""
        return {name: _spec(name, len(shape)) for name, shape in self.shapes.items()}

    @property
    def kept(self) -> tuple[str, ...]:
        """What a training saves unless other parameters are asked for: embedding and unembedding."""
        return (EMBEDDING,) if self.tied else (EMBEDDING, UNEMBEDDING)

    @property
    def size(self) -> int:
        """How many numbers all parameters hold."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def root(self, axis: str) -> str:
        """The axis itself: none is another one's alias."""
        return axis

    def trained(self, frozen: Collection[str] = ()) -> tuple[str, ...]:
        """The parameters that move when those of `frozen` keep their initial arrays. **Raises:** `UserError`."""
        for name in frozen:
            if name not in self.parameters:
                raise UserError(
                    f"there is no parameter {name!r} of {self.name} to keep frozen; {nearest(name, self.parameters)}"
                )
        left = tuple(name for name in self.parameters if name not in frozen)
        if not left:
            raise UserError(f"every parameter of {self.name} is frozen: there is nothing to train")
        return left

    def initial(self, *, gamma: float, seed: int = 0) -> dict[str, np.ndarray]:
        """Gaussian initial arrays, W_ij ~ N(0, d_in^(−2γ)).

        d_in is what a matrix multiplies, and the width for the embedding; biases start at 0 and the gains of norms at 1. An
        array depends on seed and name alone. **Raises:** `UserError`. Source: arXiv 2608.30315, Setting.
        """
        if not (isinstance(gamma, int | float) and math.isfinite(gamma)):
            raise UserError(f"gamma must be a finite number, found {gamma!r}")
        if isinstance(seed, bool) or int(seed) != seed or seed < 0:
            raise UserError(f"a seed is a whole number of at least 0, found {seed}")
        arrays = {}
        for name, shape in self.shapes.items():
            if len(shape) == 1:
                arrays[name] = np.zeros(shape) if name.endswith(".bias") else np.ones(shape)
                continue
            rng = np.random.default_rng([int(seed), *name.encode()])
            arrays[name] = rng.normal(0.0, float(shape[1]) ** -float(gamma), shape)
        return arrays

    def module(
        self,
        initial: Mapping[str, np.ndarray],
        *,
        dtype: Precision = "float64",
        device: str = "cpu",
        frozen: Collection[str] = (),
    ) -> Qwen2Module:
        """The torch module at given arrays (`compare.module.ArchitectureModule` says what the options are)."""
        check_dtype(dtype)
        check_device(device)
        check_names(self, initial)
        return Qwen2Module(self, self._made().to(device=device, dtype=DTYPES[dtype]), initial, self.trained(frozen))

    def _made(self) -> Any:
        try:
            from transformers.models.qwen2 import Qwen2Config, Qwen2ForCausalLM
        except ImportError:
            raise UserError(
                'the model qwen2 needs the package transformers: pip install "context-staircase[models]"'
            ) from None
        config = Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            intermediate_size=4 * self.width if self.hidden is None else self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads if self.key_value_heads is None else self.key_value_heads,
            max_position_embeddings=self.length,
            tie_word_embeddings=self.tied,
            use_cache=False,
        )
        return Qwen2ForCausalLM(config)


class Qwen2Module(TrainedModule):
    """A `Qwen2ForCausalLM` whose embedding and unembedding are called E and U."""

    def __init__(self, model: Qwen2, made: Any, initial: Mapping[str, np.ndarray], trained: Collection[str]):
        super().__init__()
        self.model = model
        self.made = made
        for name, value in self.named().items():
            value.requires_grad_(name in trained)
        self.load(initial)

    def named(self) -> dict[str, torch.nn.Parameter]:
        """The parameters by the model's names."""
        return {_ours(name): value for name, value in self.made.named_parameters()}

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (sample, position, label) of `tokens` (sample, position)."""
        if tokens.shape[1] > self.made.config.max_position_embeddings:
            raise UserError(
                f"{self.model.name} takes sequences of at most {self.made.config.max_position_embeddings} tokens, found "
                f"{tokens.shape[1]}: give a larger length"
            )
        return self.made(input_ids=tokens, use_cache=False).logits


def _ours(name: str) -> str:
    return _OURS.get(name, name)


def _spec(name: str, dimensions: int) -> ParameterSpec:
    if name in (EMBEDDING, UNEMBEDDING):
        return ParameterSpec((TOKEN if name == EMBEDDING else LABEL, "embed"))
    *_, kind, last = name.split(".")
    axes = _AXES.get(kind, ("embed",))[:dimensions]
    # Only a gain has no axis of its own and multiplies: it starts at 1, whatever γ is.
    return ParameterSpec(axes, 0 if last == "weight" and dimensions == 1 else 1)
