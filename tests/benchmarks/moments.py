"""One step from moments of the data against one from samples: `make bench` prints the table.

Modular sums of four numbers below 10, drawn at random: 10³ and 10⁶ samples of one task. Feed-forward model (GELU), width 128,
fully expanded to loss degree 4, float64. Counting the moments is timed apart: it is done once for each dataset.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from evaluation import compiled, least_times

from simulate import fields
from simulate.costs import cost
from theory.architectures import feed_forward
from theory.data.dataset import Dataset
from theory.evolution import derive
from theory.initial import initialise

NUMBERS, LENGTH, LABELS = 10, 4, 20


def drawn(samples: int) -> Dataset:
    """Samples of the task, all different draws of the same law."""
    tokens = np.random.default_rng(0).integers(0, NUMBERS, (samples, LENGTH))
    return Dataset(tokens, tokens.sum(1) % NUMBERS, n_tokens=NUMBERS, n_labels=LABELS, name="mod")


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    architecture = feed_forward("gelu")
    equations = derive(architecture, 4, ())
    print(f"{'samples':>8} {'evaluation':<10} {'Mflop':>10} {'ms':>10} {'compile s':>9} {'count s':>8}")
    for samples in (10**3, 10**6):
        dataset = drawn(samples)
        sizes = {"embed": 128} | dict(dataset.sizes)
        parameters = {k: jnp.asarray(v) for k, v in initialise(architecture, sizes, gamma=0.8, seed=0).items()}
        best = {}
        for field in (fields.from_samples(equations), fields.from_moments(equations)):
            start = time.perf_counter()
            data = field.data(dataset)
            counting = time.perf_counter() - start
            run, seconds = compiled(lambda p, d, f=field: f(0.0, p, d), parameters, data)
            best[field.evaluation] = least_times({"run": run}, parameters, data, repeats=3)["run"]
            flops = cost(field, dataset, parameters).flops / 1e6
            print(
                f"{samples:8d} {field.evaluation:<10} {flops:10.2f} {best[field.evaluation] * 1e3:10.3f} {seconds:9.2f} "
                f"{counting:8.2f}"
            )
        print(f"{samples:8d} ratio samples / moments: {best['samples'] / best['moments']:.0f}")
    print("bound: the same flop count from moments at both; ratio ≥ 200 at 10⁶ samples")


if __name__ == "__main__":
    main()
