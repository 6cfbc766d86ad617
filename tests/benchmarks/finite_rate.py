"""Orders of accuracy in the learning rate, and how much of SGD lies in the predicted band: prints both.

Every number is of one run with the seeds named. Addition with N = 6, feed-forward (GELU, width 8) and attention (width 8).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from simulate import exact, integrate
from simulate.modified import modified
from simulate.noise import coverage, entry_observables, predict_band
from theory import architectures, data, initialise

sys.path.insert(0, str(Path(__file__).parents[1] / "test_simulate"))
from descent import descend, minibatch_descent  # noqa: E402

RATES = (0.4, 0.2, 0.1, 0.05, 0.025)
ENTRIES = ("E[0,0]", "E[2,1]", "U[3,2]")
POOLED = ("loss", "norm_E", "norm_U", *ENTRIES)
TASKS = (
    ("feed-forward", architectures.feed_forward("gelu"), {"embed": 8}, 0.8),
    ("attention", architectures.attention(), {"embed": 8, "key": 4, "value": 8}, 0.6),
)


def relative(found: dict, wanted: dict) -> float:
    difference = sum(np.sum((np.asarray(found[k]) - np.asarray(wanted[k])) ** 2) for k in wanted)
    return float(np.sqrt(difference / sum(np.sum(np.asarray(v) ** 2) for v in wanted.values())))


def slopes(dataset, until: float = 20.0) -> None:
    print(
        f"relative error of all parameters against gradient descent at t = {until:g}, η = {', '.join(map(str, RATES))}"
    )
    for label, model, sizes, gamma in TASKS:
        field = exact(model)
        corrected = [modified(field, rate) for rate in RATES]
        for seed in range(3):
            start = initialise(model, {**dataset.sizes, **sizes}, gamma=gamma, seed=seed)
            options = {"until": until, "save": [0.0, until], "rtol": 1e-11}
            wanted = descend(field, dataset, start, RATES, until)
            flow = integrate(field, dataset, start, **options)
            lines = {
                "flow": [relative(flow.final, w) for w in wanted],
                "modified": [
                    relative(integrate(f, dataset, start, **options).final, w)
                    for f, w in zip(corrected, wanted, strict=True)
                ],
            }
            for name, errors in lines.items():
                slope = np.polyfit(np.log(RATES), np.log(errors), 1)[0]
                numbers = "  ".join(f"{e:.1e}" for e in errors)
                print(f"  {label:<12} seed {seed}  {name:<8}  {numbers}   slope {slope:.3f}", flush=True)


def bands(dataset, seeds: int = 128, paths: int = 399) -> None:
    print(
        f"\nshare of SGD in the 95 % band ({paths} paths), pooled over {seeds} seeds, 8 save times and {', '.join(POOLED)}"
    )
    shares = []
    for (label, model, sizes, gamma), rate, batch, until in (
        (TASKS[0], 0.1, 8, 40.0),
        (TASKS[0], 0.4, 4, 40.0),
        (TASKS[1], 0.1, 16, 20.0),
    ):
        for seed in range(3):
            start = initialise(model, {**dataset.sizes, **sizes}, gamma=gamma, seed=seed)
            observables = entry_observables(ENTRIES, {name: array.shape for name, array in start.items()})
            options = {"batch": batch, "save": np.linspace(0, until, 9), "observables": observables}
            field = exact(model)
            band = predict_band(field, dataset, start, learning_rate=rate, paths=paths, **options)
            training = minibatch_descent(field, dataset, start, rate=rate, seeds=seeds, **options)
            shares.append(coverage(band, training, POOLED))
            fall = band["loss"].values[[0, -1]]
            print(
                f"  {label:<12} η = {rate:g}  batch {batch:<2}  seed {seed}  loss {fall[0]:.2f} → {fall[1]:.2f}  stride "
                f"{band.attributes['stride']:<2}  coverage {100 * shares[-1]:.1f} %",
                flush=True,
            )
            if seed == 0 and len(dataset.tokens) % batch == 0:
                shuffled = minibatch_descent(
                    field, dataset, start, rate=rate, seeds=seeds, replacement=False, **options
                )
                ratio = shuffled["E[0,0]"].values.std(0)[1:] / training["E[0,0]"].values.std(0)[1:]
                print(f"    reshuffled epochs: spread of E[0,0] is {np.median(ratio):.2f} of that (median over times)")
    print(f"  all: {100 * np.mean(shares):.1f} %")


def main() -> None:
    dataset = data.load("add", numbers=6, length=2)
    slopes(dataset)
    bands(dataset)


if __name__ == "__main__":
    main()
