"""The iterations that flows are held against, in jax so that thousands of steps and many seeds are quick."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from simulate.schedule import step_of_time, time_of_step
from simulate.trajectory import Trajectory


def descend(field, dataset, start, rates, until):
    """θ ← θ + η F(θ): plain gradient descent for F = −∇L, at each learning rate."""
    with jax.enable_x64(True):
        arrays = field.data(dataset)

        @jax.jit
        def run(parameters, rate, steps):
            def step(number, parameters):
                value = field(number * rate, parameters, arrays)
                return {name: parameters[name] + rate * value[name] for name in parameters}

            return jax.lax.fori_loop(0, steps, step, parameters)

        begin = {name: jnp.asarray(value) for name, value in start.items()}
        return [run(begin, rate, step_of_time(until, rate)) for rate in rates]


def minibatch_descent(
    field, dataset, start, *, rate, batch, save, seeds, replacement=True, decay=0.0, observables=None
):
    """SGD with batches drawn from the samples: a training with the seeds 0 … `seeds` − 1, its loss, norms and observables.

    Without replacement all samples are equally likely and `batch` divides their number.
    """
    steps = np.unique([0, *(step_of_time(t, rate) for t in save)])
    with jax.enable_x64(True):
        data = field.data(dataset)
        cumulative = jnp.cumsum(data.weights) / jnp.sum(data.weights)
        per_epoch = len(data.weights) // batch

        def rows_at(key, number):
            if replacement:
                uniform = jax.random.uniform(jax.random.fold_in(key, number), (batch,))
                return jnp.searchsorted(cumulative, uniform, side="right")
            order = jax.random.permutation(jax.random.fold_in(key, number // per_epoch), len(data.weights))
            return jax.lax.dynamic_slice(order, (batch * (number % per_epoch),), (batch,))

        def measured(p):
            values = {"loss": field.loss(p, data)} | {f"norm_{k}": jnp.sqrt(jnp.sum(v**2)) for k, v in p.items()}
            return values | {name: function(p, data) for name, function in (observables or {}).items()}

        def run(key, arrays):
            def step(number, p):
                rows = rows_at(key, number)
                drawn = dataclasses.replace(
                    arrays,
                    tokens=arrays.tokens[rows],
                    labels=arrays.labels[rows],
                    weights=jnp.full(batch, 1 / batch),
                )
                value = field(0.0, p, drawn)
                return {name: p[name] + rate * (value[name] - decay * p[name]) for name in p}

            def span(p, ends):
                p = jax.lax.fori_loop(ends[0], ends[1], step, p)
                return p, measured(p)

            spans = jnp.stack([jnp.asarray(steps[:-1]), jnp.asarray(steps[1:])], axis=1)
            begin = {name: jnp.asarray(value) for name, value in start.items()}
            _, rest = jax.lax.scan(span, begin, spans)
            return jax.tree.map(lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b]), measured(begin), rest)

        keys = jax.vmap(jax.random.key)(1_000_000 + jnp.arange(seeds))
        series = jax.jit(jax.vmap(run, in_axes=(0, None)))(keys, data)
    return Trajectory.from_arrays(
        time_of_step(steps, rate),
        {},
        jax.tree.map(np.asarray, series),
        axes={},
        attributes={"kind": "training", "name": "sgd", "status": "completed"},
        seeds=range(seeds),
    )
