"""Throughput of seeds trained together against one by one: one run prints the ratio.

The demo's architecture (feed-forward GELU on addition, N = 20, width 128), 16 seeds, batch 32, float32, two threads at most.
"""

import os
import time

from compare.optimisers import Optimiser
from compare.seeds import OneByOne, Problem, Together
from compare.training import reproducible
from theory import architectures
from theory.data import arithmetic
from theory.initial import initialise

SEEDS, BATCH, STEPS, ROUNDS = range(16), 32, 40, 3


def main() -> None:
    dataset = arithmetic.add(numbers=20)
    architecture = architectures.load("feed_forward", activation="gelu")
    initial = initialise(architecture, {**dataset.sizes, "embed": 128}, gamma=0.8)
    problem = Problem(architecture, dataset, initial, 0.1, Optimiser(), BATCH, True, "float32")
    print(f"{len(SEEDS)} seeds of {architecture.name}, batch {BATCH}, float32: steps of all seeds per second")
    for threads in sorted({1, min(2, os.cpu_count() or 1)}):
        with reproducible(threads):
            # Alternating, and the best of some rounds: other programs only ever slow a round down.
            fastest = {}
            for _ in range(ROUNDS):
                for kind in (OneByOne, Together):
                    members = kind(problem, SEEDS)
                    members.advance_to(10)
                    started = time.perf_counter()
                    members.advance_to(10 + STEPS)
                    rate = STEPS / (time.perf_counter() - started)
                    fastest[kind] = max(rate, fastest.get(kind, 0.0))
        alone, together = fastest[OneByOne], fastest[Together]
        print(
            f"  threads {threads}: one by one {alone:6.1f}, together {together:6.1f}, ratio {together / alone:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
