"""The noise of minibatches: a diffusion over parameters, and the band in which training is to be found.

For batches drawn with replacement. The covariance of a batch gradient is written once, in `gradient_noise`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from simulate.flow import Observable, VectorField
from simulate.modified import HeavyBallField, ModifiedField, WeightDecayField
from simulate.schedule import Schedule, as_schedule, step_of_time
from simulate.trajectory import Trajectory
from theory.errors import NumericalFailure, UserError, nearest
from theory.evaluation import Data

LEVEL = 0.95
# A longer step is taken only where it moves the noise-free path by less than this share of the paths' standard deviation,
# which changes the coverage of a band by less than 0.1 %.
STRIDE_TOLERANCE = 0.05
_LONGEST_STRIDE = 64
# Paths count as blown up once the norm of a parameter passes so many times the larger of 1 and its initial norm.
_BLOW_UP = 1e6
_BANDS = ("lower", "upper", "std")


def gradient_noise(field: VectorField, parameters: Mapping[str, Any], data: Data, normals: Any, batch: Any) -> Any:
    """One draw of the noise of a batch gradient, up to its being normal: D ᵀz with DᵀD = Cov(batch gradient).

    For `batch` = B samples drawn independently with their probabilities P, the covariance is Σ_s P_s (g_s − ḡ)(g_s − ḡ)ᵀ/B,
    g_s the gradient of sample s. Its factor has a row √(P_s/B) (g_s − ḡ) for every sample and is never built: Dᵀz is the
    gradient of the loss with weights c_s = (√P_s z_s − P_s Σ_u √P_u z_u)/√B in place of P_s, one evaluation of the field.

    **Arguments:** `field`: whose value is linear in the weights of the samples (exact, or derived and evaluated on samples);
    `data`: of that field; `normals`: z, (sample), standard normal.

    **Returns:** name → noise of the parameter's shape, with the sign of the field. Source: Li, Tai & E, arXiv 1511.06251, §2.
    """
    root = jnp.sqrt(data.weights / batch)
    weights = root * normals - data.weights * jnp.sum(root * normals)
    return field(jnp.zeros((), weights.dtype), dict(parameters), dataclasses.replace(data, weights=weights))


def covariance_factor(field: VectorField, parameters: Mapping[str, Any], data: Data, batch: int) -> dict[str, Any]:
    """The factor D of the covariance DᵀD of a batch gradient, one row for each sample (memory: samples × parameters).

    **Arguments:** as in `gradient_noise`. **Returns:** name → (sample, *axes).
    """
    rows = jnp.eye(len(data.weights), dtype=data.weights.dtype)
    return jax.vmap(lambda row: gradient_noise(field, parameters, data, row, batch))(rows)


def subsampled(data: Data, key: Any, rank: int) -> Data:
    """`rank` samples drawn with their probabilities and weighted equally.

    Their covariance times rank/(rank − 1) has the covariance of all samples as its mean.
    """
    rows = jax.random.choice(key, len(data.weights), (rank,), p=data.weights)
    weights = jnp.full((rank,), 1.0 / rank, data.weights.dtype)
    return Data(data.tokens[rows], data.labels[rows], weights)


def predict_band(
    field: VectorField,
    dataset: Any,
    initial: Mapping[str, np.ndarray],
    *,
    learning_rate: float,
    batch: int,
    save: Schedule | Iterable[float],
    until: float | None = None,
    replacement: bool = True,
    observables: Mapping[str, Observable] | None = None,
    save_parameters: str | Sequence[str] = "all",
    sampled: VectorField | None = None,
    rank: int | None = None,
    paths: int = 200,
    seed: int = 0,
    stride: int | None = None,
    group: int = 16,
    name: str = "noise",
    attributes: Mapping[str, Any] | None = None,
) -> Trajectory:
    """Mean and 95 % band of training with minibatches, from paths of a stochastic differential equation.

    Integrates, in the sense of Itô, dθ = (F − (η/2) F′F) dt + √(ηΣ(θ)) dW, Σ the covariance of a batch gradient: the
    second-order stochastic modified equation of Li, Tai & E (arXiv 1511.06251, Theorem 1; JMLR 20 (2019) 40). A linear
    (Gaussian) approximation around the mean would need one adjoint solve per observable and time, and misses that noise moves
    the escape from a plateau; paths hold for any observable.

    A step of h = k η stands for k = `stride` steps of training and is, with w = (1 − 1/k)/2 and N the noise √(ηh) Dᵀz
    of θ_n + (h − η)/2 F(θ_n),

        θ_{n+1} = θ_n + N + (1 − w) h F(θ_n) + w h F(θ_n + h F(θ_n) + N).

    At k = 1 this is gradient descent with normal gradient noise; at any k it has the modified equation's drift up to h³,
    without F′F being computed, and the covariance of k steps of training up to its second order in h. (Euler's method at
    h = η would add the discretisation error that the modified drift stands for once more.)

    **Arguments:**

    - `field`: the plain flow F, with weight decay or without; the correction for η is made here.
    - `dataset`, `initial`: as in `simulate.integrate`; `learning_rate`: η > 0.
    - `batch`: samples per step, drawn with replacement with their probabilities. `replacement=False` is refused.
    - `save`, `until`: save times in learning rate × steps, moved to whole steps of η.
    - `observables`: name → function of (parameters, data) of jax arrays; see `entry_observables` for names as in files.
      The loss and the norms `norm_<parameter>` are always among them.
    - `save_parameters`: "all", or names of the parameters of which the mean over paths is kept.
    - `sampled`: the field from which the noise is taken, evaluated on samples; by default `field`; weight decay gives no noise.
    - `rank`: number of samples, drawn anew at every step, that the noise is computed from, for data with very many; all
      of them, exactly, by default.
    - `paths`: number of paths, at least 39.
    - `seed`: of the paths; path number i is the same for any number of paths.
    - `stride`: k; found by trial when left out: the largest power of two up to 64 at which the noise-free path differs from
      gradient descent by less than a twentieth of the paths' standard deviation, in every observable at every save time.
    - `group`: paths computed together (memory).

    **Returns:** a `Trajectory` of kind "flow" with, for each observable, its mean over paths under its own name and
    `<name>_std`, `<name>_lower`, `<name>_upper`. The band is where *one further* path lies with probability 95 %, the number
    of paths accounted for: between the order statistics of ranks .025 (paths + 1) and .975 (paths + 1) (Wilks, Ann. Math.
    Stat. 12 (1941) 91). When a path blows up (a norm beyond 1e6
    times the larger of 1 and its start) the status is "blow-up" and the times before are kept.

    **Raises:** `UserError` for arguments out of range, reshuffled epochs, and fields that give no noise per sample.
    """
    steps = _steps(save, until, learning_rate)
    check_noise(batch, replacement, paths)
    if isinstance(field, ModifiedField | HeavyBallField):
        raise UserError(f"the band corrects for the learning rate by itself: give the plain flow, not {field.name!r}")
    source = _undecayed(field if sampled is None else sampled)
    chosen = tuple(initial) if save_parameters == "all" else tuple(save_parameters)
    for parameter in chosen:
        if parameter not in initial:
            raise UserError(f"there is no parameter {parameter!r} to save; {nearest(parameter, initial)}")
    observables = dict(observables or {})
    _check_names(initial, observables)
    if rank is not None and not (isinstance(rank, int) and rank >= 2):
        raise UserError(f"rank must be a whole number of at least 2, found {rank!r}")
    if stride is not None and not (isinstance(stride, int) and stride >= 1):
        raise UserError(f"stride must be a whole number of at least 1, found {stride!r}")

    with jax.enable_x64(True):
        arrays = {key: jnp.asarray(np.asarray(value), dtype=jnp.float64) for key, value in initial.items()}
        data, noise_data = field.data(dataset), source.data(dataset)
        _check_linear(source, arrays, noise_data)
        paths_of = _Paths(field, source, tuple(observables.items()), chosen, rank)
        fixed = {"initial": arrays, "data": data, "noise_data": noise_data}
        solver = _Solver(paths_of, fixed, steps, float(learning_rate), int(batch), seed, group)
        started = time.perf_counter()
        compiling = solver.compile()
        if stride is None:
            stride = solver.longest_stride()
        series, means, failed = solver.run(paths, stride)
        running = time.perf_counter() - started - compiling
    times = np.atleast_1d(as_schedule(np.asarray(steps) * learning_rate).times)
    good = int(np.argmin(~failed)) if failed.any() else len(times)
    if good == 0:
        raise UserError("the initial arrays or their loss are not finite")
    recorded = {
        "kind": "flow",
        "name": name,
        "status": "blow-up" if good < len(times) else "completed",
        "message": f"some path blew up after t = {times[good - 1]:g}." if good < len(times) else None,
        "stop_time": float(times[good - 1]),
        "last_good_time": float(times[good - 1]),
        "requested_times": times.tolist(),
        "until": float(times[-1]),
        "learning_rate": float(learning_rate),
        "batch": int(batch),
        "rank": rank,
        "paths": int(paths),
        "seed": int(seed),
        "stride": int(stride),
        "level": LEVEL,
        "steps_accepted": int(_substeps(steps, stride).sum()),
        "steps_rejected": 0,
        "seconds_compile": compiling,
        "seconds_run": running,
        "solver": "weak second order in the learning rate",
        "dtype": "float64",
    }
    shape_axes = dict(getattr(field, "axes", {}))
    return Trajectory.from_arrays(
        times[:good],
        {key: value[:good] for key, value in means.items()},
        _bands({key: value[:, :good] for key, value in series.items()}),
        axes=shape_axes,
        attributes=recorded | dict(attributes or {}),
    )


def entry_observables(names: Iterable[str], parameters: Mapping[str, Sequence[int]]) -> dict[str, Observable]:
    """Observables by name: `E[0,3]` is an entry of parameter E.

    Names that are always measured (`loss`, `norm_E`) are let through and give nothing. The functions read numpy and jax
    arrays alike, so that `compare.train` can measure the same.

    **Arguments:** `parameters`: name → shape. **Raises:** `UserError` for a name that means nothing.
    """
    found: dict[str, Observable] = {}
    always = ("loss", *(f"norm_{name}" for name in parameters))
    for text in names:
        if text in always:
            continue
        match = re.fullmatch(r"(\w+)\[\s*(\d+(?:\s*,\s*\d+)*)\s*\]", text)
        if match is None or match.group(1) not in parameters:
            raise UserError(
                f"no observable is called {text!r}; {nearest(text, always)} An entry of a parameter is written "
                f"{next(iter(parameters), 'E')}[0,1]."
            )
        name, place = match.group(1), tuple(int(number) for number in match.group(2).split(","))
        shape = tuple(parameters[name])
        if len(place) != len(shape) or any(i >= n for i, n in zip(place, shape, strict=True)):
            raise UserError(f"{text!r} is no entry of {name}, whose shape is {shape}")
        found[text] = _Entry(name, place)
    return found


@dataclass(frozen=True)
class _Entry:
    name: str
    place: tuple[int, ...]

    def __call__(self, parameters: Mapping[str, Any], data: Any) -> Any:
        return parameters[self.name][self.place]


def coverage(band: Trajectory, training: Trajectory, observables: Iterable[str]) -> float:
    """The share of a training's measurements that lie in a predicted band: pooled over seeds, save times and observables.

    Counted are the save times that both have, t = 0 left out, and every entry of an observable.

    **Arguments:** `band`: from `predict_band`; `training`: one or several seeds, with series of the same names; an entry such
    as `E[0,1]` is taken from the stored parameter where there is no such series.

    **Raises:** `UserError` when a quantity is missing on either side or no save time is common.
    """
    shared = [
        (i, j)
        for i, t in enumerate(band.times)
        for j, s in enumerate(training.times)
        if t > 0 and abs(t - s) <= 1e-9 * abs(t)
    ]
    if not shared:
        raise UserError("the band and the training share no save time after t = 0")
    inside: list[np.ndarray] = []
    ours, theirs = (list(index) for index in zip(*shared, strict=True))
    for name in observables:
        lower, upper = (band[f"{name}_{side}"].values[ours] for side in ("lower", "upper"))
        values = _measurement(training, name)[:, theirs]
        inside.append(((lower <= values) & (values <= upper)).ravel())
    return float(np.mean(np.concatenate(inside)))


def _measurement(training: Trajectory, name: str) -> np.ndarray:
    """A series, or an entry of a stored parameter, as (seed, time, …)."""
    if name in training.series_names:
        values = training[name].values
    else:
        shapes = {key: training.parameters(0)[key].shape[len(training.seeds or ()) > 0 :] for key in _stored(training)}
        entry = entry_observables([name], shapes).get(name)
        if entry is None:
            raise UserError(f"the training {training.name!r} holds no {name!r}")
        assert isinstance(entry, _Entry)
        values = training[entry.name].values[(..., *entry.place)]
    return values if training.seeds is not None else values[None]


def _stored(training: Trajectory) -> tuple[str, ...]:
    return training.parameter_names if np.array_equal(training.parameter_times, training.times) else ()


def check_noise(batch: int | str, replacement: bool, paths: int) -> None:
    """Refuse a band that cannot be predicted. **Raises:** `UserError`."""
    if not replacement:
        raise UserError(
            "no band is predicted for reshuffled epochs (replacement = false): they shrink the spread to about a fifth of "
            "what batches drawn with replacement have; set replacement = true"
        )
    if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1:
        raise UserError(f"the noise needs a batch, a whole number of at least 1, found {batch!r}")
    least = math.ceil(2 / (1 - LEVEL)) - 1
    if isinstance(paths, bool) or not isinstance(paths, int | np.integer) or paths < least:
        raise UserError(f"a band of {LEVEL:.0%} needs at least {least} paths, found {paths!r}")


def _undecayed(field: VectorField) -> VectorField:
    """Weight decay is the same in every batch."""
    while isinstance(field, WeightDecayField):
        field = field.field
    return field


def _check_linear(field: VectorField, parameters: Mapping[str, Any], data: Any) -> None:
    if not isinstance(data, Data):
        raise UserError(
            f"the field {field.name!r} is not evaluated on samples, so it gives no gradient of each: "
            "give sampled=simulate.exact(architecture)"
        )
    # Weights with other sums and signs than probabilities.
    tilted = dataclasses.replace(data, weights=data.weights * jnp.cos(jnp.arange(len(data.weights))))
    rest = dataclasses.replace(data, weights=data.weights - tilted.weights)
    whole, first, second = (jax.jit(field)(0.0, parameters, each) for each in (data, tilted, rest))
    for name, value in whole.items():
        scale = sum(float(jnp.abs(part[name]).max(initial=0.0)) for part in (first, second))
        if float(jnp.abs(first[name] + second[name] - value).max(initial=0.0)) > 1e-9 * scale:
            raise UserError(f"the field {field.name!r} is not linear in the weights of the samples: it gives no noise")


def _check_names(initial: Mapping[str, Any], observables: Mapping[str, Observable]) -> None:
    always = {*initial, *(f"norm_{name}" for name in initial), "loss"}
    taken = always | {f"{name}_{side}" for name in always for side in _BANDS}
    for name in observables:
        if name in taken or any(f"{name}_{side}" in observables for side in _BANDS):
            raise UserError(f"an observable cannot be called {name!r}; that name is taken.")


def _steps(save: Schedule | Iterable[float], until: float | None, learning_rate: float) -> np.ndarray:
    """Steps of training at the save times, step 0 among them."""
    schedule = as_schedule(save)
    steps = schedule.steps(learning_rate)
    if until is not None:
        if not (math.isfinite(until) and until > 0):
            raise UserError(f"until must be a positive time, found {until!r}")
        end = max(step_of_time(until, learning_rate), 1)
        steps = np.unique(np.append(steps[steps <= end], end))
    if steps[-1] < 1:
        raise UserError("the last save time lies before the first step of training")
    return steps


def _substeps(steps: np.ndarray, stride: int) -> np.ndarray:
    """How many steps of at most `stride` training steps lead from one save time to the next."""
    return -(-np.diff(steps) // stride)


@dataclass(frozen=True)
class _Paths:
    """What is compiled: several paths along all save times. Equal ones share a compilation."""

    field: VectorField
    source: VectorField
    observables: tuple[tuple[str, Observable], ...]
    kept: tuple[str, ...]
    rank: int | None

    def measured(self, parameters: Mapping[str, Any], data: Any) -> dict[str, Any]:
        loss = getattr(self.field, "loss", None)
        values = {} if loss is None else {"loss": loss(parameters, data)}
        values |= {f"norm_{name}": jnp.sqrt(jnp.sum(value**2)) for name, value in parameters.items()}
        return values | {name: function(parameters, data) for name, function in self.observables}

    def noise(self, parameters: Mapping[str, Any], data: Data, key: Any, batch: Any) -> Any:
        if self.rank is None:
            return gradient_noise(self.source, parameters, data, jax.random.normal(key, data.weights.shape), batch)
        rows, draw = jax.random.split(key)
        data = subsampled(data, rows, self.rank)
        normals = jax.random.normal(draw, (self.rank,)) * math.sqrt(self.rank / (self.rank - 1))
        return gradient_noise(self.source, parameters, data, normals, batch)

    def step(self, parameters: dict[str, Any], inputs: Mapping[str, Any], h: Any, key: Any) -> dict[str, Any]:
        eta = inputs["learning_rate"]
        zero = jnp.zeros_like(h)
        rate = self.field(zero, parameters, inputs["data"])
        middle = {name: value + (h - eta) / 2 * rate[name] for name, value in parameters.items()}
        size = jnp.sqrt(eta * h) * inputs["amplitude"]
        noise = self.noise(middle, inputs["noise_data"], key, inputs["batch"])
        kick = {name: size * value for name, value in noise.items()}
        end = {name: value + h * rate[name] + kick[name] for name, value in parameters.items()}
        share = (1 - eta / h) / 2

        def corrected() -> dict[str, Any]:
            later = self.field(zero, end, inputs["data"])
            return {name: value + share * h * (later[name] - rate[name]) for name, value in end.items()}

        # One evaluation less where a step stands for one step of training.
        return jax.lax.cond(share > 1e-12, corrected, lambda: end)

    def path(self, key: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        def interval(state: tuple[dict[str, Any], Any], span: Mapping[str, Any]) -> Any:
            def body(_: Any, state: tuple[dict[str, Any], Any]) -> Any:
                parameters, count = state
                parameters = self.step(parameters, inputs, span["h"], jax.random.fold_in(key, count))
                return parameters, count + 1

            parameters, count = jax.lax.fori_loop(0, span["substeps"], body, state)
            kept = {name: parameters[name] for name in self.kept}
            return (parameters, count), (self.measured(parameters, inputs["data"]), kept)

        start = inputs["initial"]
        first = (self.measured(start, inputs["data"]), {name: start[name] for name in self.kept})
        _, rest = jax.lax.scan(interval, (start, jnp.zeros((), jnp.int64)), inputs["spans"])
        return jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b]), first, rest)

    def __call__(self, keys: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Series of every path, (path, time, …), and the sum over paths of the parameters kept, (time, …)."""
        series, parameters = jax.vmap(self.path, in_axes=(0, None))(keys, inputs)
        # Paths beyond the number asked for fill up the last group.
        counted = inputs["counted"]
        total = {
            name: jnp.sum(jnp.where(counted.reshape(-1, *[1] * (value.ndim - 1)), value, 0.0), 0)
            for name, value in parameters.items()
        }
        return series, total


@functools.partial(jax.jit, static_argnums=0)
def _run(paths: _Paths, keys: Any, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return paths(keys, inputs)


@dataclass(frozen=True, eq=False)
class _Solver:
    """Any number of paths at any stride."""

    paths: _Paths
    fixed: Mapping[str, Any]
    steps: np.ndarray
    learning_rate: float
    batch: int
    seed: int
    group: int

    def inputs(self, stride: int, amplitude: float, counted: int) -> dict[str, Any]:
        substeps = _substeps(self.steps, stride)
        h = np.diff(self.steps) / substeps * self.learning_rate
        return dict(self.fixed) | {
            "spans": {"h": jnp.asarray(h, jnp.float64), "substeps": jnp.asarray(substeps, jnp.int64)},
            "learning_rate": jnp.asarray(self.learning_rate, jnp.float64),
            "batch": jnp.asarray(self.batch, jnp.float64),
            "amplitude": jnp.asarray(amplitude, jnp.float64),
            "counted": jnp.arange(self.group) < counted,
        }

    def keys(self, first: int) -> Any:
        return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(self.seed), i))(
            jnp.arange(first, first + self.group)
        )

    def compile(self) -> float:
        """Seconds to compile, by a run of no steps."""
        started = time.perf_counter()
        inputs = self.inputs(1, 0.0, self.group)
        inputs["spans"]["substeps"] = jnp.zeros_like(inputs["spans"]["substeps"])
        jax.block_until_ready(_run(self.paths, self.keys(0), inputs))
        return time.perf_counter() - started

    def run(
        self, count: int, stride: int, amplitude: float = 1.0
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
        """Series (path, time, …), mean parameters (time, …), and at which times some path is not finite."""
        parts, total = [], None
        for first in range(0, count, self.group):
            here = min(self.group, count - first)
            inputs = self.inputs(stride, amplitude, here)
            series, summed = jax.tree.map(np.asarray, _run(self.paths, self.keys(first), inputs))
            parts.append({name: value[:here] for name, value in series.items()})
            total = summed if total is None else {name: total[name] + value for name, value in summed.items()}
        assert total is not None
        merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        failed = np.zeros(len(self.steps), dtype=bool)
        for name in merged:
            if name == "loss" or name.startswith("norm_"):
                limit = np.inf if name == "loss" else _BLOW_UP * max(1.0, float(merged[name][0, 0]))
                failed |= ~(np.isfinite(merged[name]) & (merged[name] <= limit)).all(0)
        return merged, {name: value / count for name, value in total.items()}, np.maximum.accumulate(failed)

    def longest_stride(self) -> int:
        """By trial: see `predict_band`."""
        exact, _, failed = self.run(1, 1, 0.0)
        if failed.any():
            raise NumericalFailure(
                "gradient descent at this learning rate does not stay finite, so no band is predicted"
            )
        stride = _LONGEST_STRIDE
        while stride > 1:
            if stride < 2 * np.diff(self.steps).max():
                pilot, _, broken = self.run(self.group, stride)
                found, _, also = self.run(1, stride, 0.0)
                if not (broken | also).any() and all(
                    bool(
                        np.all(
                            np.abs(found[n][0] - exact[n][0])
                            <= STRIDE_TOLERANCE * np.std(pilot[n], 0) + _tiny(exact[n])
                        )
                    )
                    for n in exact
                ):
                    return stride
            stride //= 2
        return 1


def _tiny(values: np.ndarray) -> float:
    """Rounding, where nothing varies."""
    return 1e-12 * float(np.abs(values).max(initial=0.0))


def _bands(series: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, values in series.items():
        outside = (1 - LEVEL) / 2
        found[name] = values.mean(0)
        found[f"{name}_std"] = values.std(0, ddof=1)
        # "weibull" are the order statistics of ranks q (n + 1), which a further draw stays below with probability q.
        found[f"{name}_lower"], found[f"{name}_upper"] = np.quantile(
            values, [outside, 1 - outside], axis=0, method="weibull"
        )
    return found
