"""64 seeds in the way that a trial chooses, and one by one; what the cache of compiled flows saves: `make bench` prints both.

The seconds are of integration alone; compiling is apart. Bound: the chosen way is never slower than one by one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from simulate.ensemble import Member, integrate_ensemble
from simulate.fields import exact
from theory.architectures import feed_forward
from theory.data import load
from theory.initial import initialise

SEEDS = 64


def seeds() -> None:
    model = feed_forward("gelu")
    # From little work, where nothing is tried, to long flows of tiny arrays (vmap) and of large ones (processes).
    for numbers, width, until, rtol in (
        (8, 64, 60.0, 1e-6),
        (3, 2, 500.0, 1e-12),
        (8, 16, 60.0, 1e-11),
        (20, 128, 500.0, 1e-8),
    ):
        dataset = load("add", numbers=numbers, length=2)
        sizes = {**dataset.sizes, "embed": width}
        field = exact(model)
        members = [
            Member(field, initialise(model, sizes, gamma=0.8, seed=seed), {"seed": seed}) for seed in range(SEEDS)
        ]
        seconds = {}
        for way in ("one-by-one", "auto"):
            integrate_ensemble(members[:2], dataset, until=until, rtol=rtol, way=way)  # compiles what is compiled once
            started = time.perf_counter()
            result = integrate_ensemble(members, dataset, until=until, rtol=rtol, way=way)
            seconds[way] = time.perf_counter() - started - result.choices[0].seconds_compile
        print(f"N = {numbers}, width {width}, t ≤ {until:g}, rtol {rtol:g}: {result.choices[0]}")
        ratio = seconds["one-by-one"] / seconds["auto"]
        print(
            f"  one by one {seconds['one-by-one']:.2f} s, chosen {seconds['auto']:.2f} s: {ratio:.2f} times, trial included"
        )


CHILD = """
import sys
from simulate import cache, integrate, exact
from theory.architectures import feed_forward
from theory.data import load
from theory.initial import initialise
cache.enable(sys.argv[1])
dataset, model = load("add", numbers=20, length=2), feed_forward("gelu")
start = initialise(model, {**dataset.sizes, "embed": 128}, gamma=0.8, seed=0)
print(integrate(exact(model), dataset, start, until=1.0).attributes["seconds_compile"])
"""


def cache() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = [
            float(
                subprocess.run([sys.executable, "-c", CHILD, folder], capture_output=True, text=True, check=True).stdout
            )
            for _ in range(2)
        ]
    print(
        f"tracing and compiling: first process {found[0]:.2f} s, second {found[1]:.2f} s ({found[0] / found[1]:.1f} times)"
    )


if __name__ == "__main__":
    seeds()
    cache()
