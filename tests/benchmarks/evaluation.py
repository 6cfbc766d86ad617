"""What one right-hand side costs, against `jax.grad` of a model written by hand: `make bench` prints the table.

Addition, N = 20 (400 sequences), width 128, float64. The ways are timed in turn within one run and the ratio is that of the
least times, so that a busy machine slows all alike; compile times stand apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from simulate import fields
from theory.architectures import attention, feed_forward
from theory.data import load
from theory.evolution import derive
from theory.initial import initialise
from theory.language import (
    Architecture,
    branch,
    causal,
    dot,
    elementwise,
    embed,
    last,
    module,
    rename,
    size,
    softmax,
    sqrt,
)

WIDTH = 128
Arrays = Mapping[str, Any]


def last_position_transformer(blocks: int) -> Architecture:
    """Residual causal blocks of attention and MLP as the stock transformer's, read at the last position."""

    def forward(p, tokens):
        x = embed(p.E, tokens)
        for n in range(1, blocks + 1):
            q = rename(dot(p[f"Q{n}"], branch(x, "query"), over="embed"), position="query")
            k = dot(p[f"K{n}"], branch(x, "key"), over="embed")
            a = softmax(dot(q, k, over="key") / sqrt(size("key")), over="position", mask=causal("query"))
            v = dot(p[f"V{n}"], branch(x, "value"), over="embed")
            mixed = rename(dot(a, v, over="position"), query="position")
            x = x + module(dot(p[f"O{n}"], mixed, over="value"), f"attention {n}")
            h = dot(p[f"W{n}"], branch(x, "mlp"), over="embed")
            x = x + module(dot(p[f"M{n}"], elementwise(h, "gelu"), over="hidden"), f"mlp {n}")
        return dot(p.U, last(x), over="embed")

    shapes: dict[str, tuple[str, ...]] = {"E": ("token", "embed")}
    for n in range(1, blocks + 1):
        shapes |= {f"Q{n}": ("key", "embed"), f"K{n}": ("key", "embed"), f"V{n}": ("value", "embed")}
        shapes |= {f"O{n}": ("embed", "value"), f"W{n}": ("hidden", "embed"), f"M{n}": ("embed", "hidden")}
    return Architecture(forward, shapes | {"U": ("label", "embed")}, name=f"transformer, {blocks} blocks")


# -- the same models as a user of jax writes them ------------------------------------------------------------------------


def _feed_forward(p: Arrays, tokens: Any) -> Any:
    return jax.nn.gelu(p["E"][tokens].sum(1), approximate=False) @ p["U"].T


def _attention(p: Arrays, tokens: Any) -> Any:
    x = p["E"][tokens]
    q, k, v = x[:, -1] @ p["Q"].T, x @ p["K"].T, x @ p["V"].T
    a = jax.nn.softmax(jnp.einsum("sk,sik->si", q, k) / WIDTH**0.5)
    return jnp.einsum("si,siv->sv", a, v) @ p["O"].T @ p["U"].T


def _transformer(blocks: int) -> Callable[[Arrays, Any], Any]:
    def logits(p: Arrays, tokens: Any) -> Any:
        x = p["E"][tokens]
        mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
        for n in range(1, blocks + 1):
            q, k, v = x @ p[f"Q{n}"].T, x @ p[f"K{n}"].T, x @ p[f"V{n}"].T
            scores = jnp.where(mask, q @ k.swapaxes(1, 2) / WIDTH**0.5, -jnp.inf)
            x = x + jax.nn.softmax(scores) @ v @ p[f"O{n}"].T
            x = x + jax.nn.gelu(x @ p[f"W{n}"].T, approximate=False) @ p[f"M{n}"].T
        return x[:, -1] @ p["U"].T

    return logits


def by_hand(logits: Callable[[Arrays, Any], Any]) -> Callable[[Arrays, Any], Any]:
    """−∇L of hand-written logits by `jax.grad`."""

    def loss(p: Arrays, data: Any) -> Any:
        log_p = jax.nn.log_softmax(logits(p, data.tokens))
        return -data.weights @ log_p[jnp.arange(len(data.labels)), data.labels]

    return lambda p, data: jax.tree.map(jnp.negative, jax.grad(loss)(p, data))


def compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], float]:
    """The compiled function and the seconds that took."""
    start = time.perf_counter()
    made = jax.jit(function).lower(*arguments).compile()
    return made, time.perf_counter() - start


def least_times(ways: Mapping[str, Callable[..., Any]], *arguments: Any, repeats: int = 40) -> dict[str, float]:
    """The least seconds of each way, timed in turn."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, run in ways.items():
            start = time.perf_counter()
            jax.block_until_ready(run(*arguments))
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    dataset = load("add", numbers=20, length=2)
    cases = (
        ("feed-forward", feed_forward("gelu"), _feed_forward, 3),
        ("attention", attention(), _attention, 8),
        ("2 blocks", last_position_transformer(2), _transformer(2), 4),
    )
    print(
        f"{'one right-hand side (ratio to jax.grad by hand)':<50} {'ms':>8} {'ratio':>6} {'bound':>6} {'compile s':>9}"
    )
    for name, architecture, logits, degree in cases:
        sizes = dict.fromkeys(architecture.axes, WIDTH) | dict(dataset.sizes)
        parameters = {k: jnp.asarray(v) for k, v in initialise(architecture, sizes, gamma=0.8, seed=0).items()}
        exact = fields.exact(architecture)
        data = exact.data(dataset)
        flows = {
            "everything kept": fields.from_samples(derive(architecture)),
            f"cut logits, loss degree {degree}": fields.field(architecture, "cut-logits", degree),
            f"expanded, loss degree {degree}": fields.field(architecture, "expanded", degree),
        }
        ways: dict[str, Callable[..., Any]] = {"by hand": by_hand(logits), "exact": lambda p, d, f=exact: f(0.0, p, d)}
        ways |= {key: (lambda p, d, f=flow: f(0.0, p, d)) for key, flow in flows.items()}
        made = {key: compiled(way, parameters, data) for key, way in ways.items()}
        reference, value = (made[key][0](parameters, data) for key in ("by hand", "everything kept"))
        for parameter, array in reference.items():
            assert jnp.allclose(array, value[parameter], rtol=1e-9, atol=1e-12 * float(jnp.abs(array).max())), parameter
        best = least_times({key: run for key, (run, _) in made.items()}, parameters, data)
        for key in ways:
            bound = {"by hand": "", "exact": "1.1"}.get(key, "2.0")
            ratio = best[key] / best["by hand"]
            print(f"{name + ', ' + key:<50} {best[key] * 1e3:8.2f} {ratio:6.2f} {bound:>6} {made[key][1]:9.2f}")
    deep = last_position_transformer(12)
    sizes = dict.fromkeys(deep.axes, WIDTH) | dict(dataset.sizes)
    parameters = {k: jnp.asarray(v) for k, v in initialise(deep, sizes, gamma=0.8, seed=0).items()}
    flow = fields.from_samples(derive(deep))
    _, seconds = compiled(lambda p, d: flow(0.0, p, d), parameters, flow.data(dataset))
    print(f"{'12 blocks, everything kept: compile':<50} {'':8} {'':6} {'60 s':>6} {seconds:9.2f}")


if __name__ == "__main__":
    main()
