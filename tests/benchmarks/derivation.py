"""How long derivations take, and how their size grows: `make bench` prints the table.

Best of three process times, imports and the exact series of the activation (cached by sympy) apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from theory.architectures import feed_forward, transformer
from theory.evolution import EvolutionEquations, derive


def best(run: Callable[[], EvolutionEquations], repeats: int = 3) -> tuple[float, EvolutionEquations]:
    """The least process time of a few runs, and the result."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    return min(times), result


def main() -> None:
    derive(feed_forward("gelu"), 12, ())
    rows: list[tuple[str, Callable[[], EvolutionEquations], float | None]] = [
        ("transformer, 12 blocks, expanded to loss degree 6", lambda: derive(transformer(blocks=12), 6, ()), 2.0),
        ("transformer, 24 blocks, expanded to loss degree 6", lambda: derive(transformer(blocks=24), 6, ()), 8.0),
        ("transformer, 2 blocks, expanded to loss degree 8", lambda: derive(transformer(blocks=2), 8, ()), 0.5),
        ("feed-forward, expanded to loss degree 12", lambda: derive(feed_forward(), 12, ()), 1.0),
        (
            "feed-forward, loss degree 8, distinct positions",
            lambda: derive(feed_forward(), 8, ()).distinct_positions(),
            0.5,
        ),
        ("transformer, 12 blocks, everything kept", lambda: derive(transformer(blocks=12)), 1.0),
    ]
    print(f"{'derivation':<52} {'seconds':>8} {'bound':>6} {'terms':>7}")
    for name, run, bound in rows:
        seconds, equations = best(run)
        print(f"{name:<52} {seconds:8.2f} {bound or 0:6.1f} {equations.term_count:7d}")
    print("\ngrowth with depth (expanded to loss degree 6; everything kept)")
    depths = (2, 4, 8, 16)
    for label, degree, keep in (("expanded", 6, ()), ("kept", None, None)):
        measured = [best(lambda n=n: derive(transformer(blocks=n), degree, keep), 1) for n in depths]  # noqa: B023
        counts = [equations.term_count for _, equations in measured]
        power = np.polyfit(np.log(depths), np.log(counts), 1)[0]
        cost = np.polyfit(np.log(depths), np.log([seconds for seconds, _ in measured]), 1)[0]
        print(f"  {label:<9} terms at depths {depths}: {counts}; terms ~ depth^{power:.2f}, time ~ depth^{cost:.2f}")


if __name__ == "__main__":
    main()
