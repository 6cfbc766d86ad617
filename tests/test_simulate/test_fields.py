"""Vector fields: the exact and the derived flow agree; which truncated flow is the gradient of what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet
from jax.flatten_util import ravel_pytree

from simulate import fields
from theory import architectures, interpret
from theory.data import Dataset
from theory.errors import UserError
from theory.evaluation import right_hand_sides
from theory.evolution import derive
from theory.language import Architecture, dot, embed, rename, softmax

SIZES = {"token": 4, "label": 5, "position": 3, "embed": 2, "hidden": 3, "key": 2, "value": 3}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def setting(architecture, seed=0, scale=0.7):
    rng = np.random.default_rng(seed)
    sizes = {a: n for a, n in SIZES.items() if a in {*architecture.axes, "label"}}
    parameters = {k: jnp.asarray(rng.normal(0, scale, s)) for k, s in architecture.shapes(sizes).items()}
    tokens = rng.integers(0, 4, (8, 3))
    labels = rng.integers(0, 5, tokens.shape if architecture.labels_per_position else 8)
    return parameters, Dataset(tokens, labels, rng.dirichlet(np.ones(8)), n_tokens=4, n_labels=5)


def run(function, *arguments):
    """Compiled as one program and without optimisation: op by op, each would be compiled by itself."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})(*arguments)


def flow(field, parameters, data):
    return run(lambda p, d: field(0.0, p, d), parameters, data)


def assert_close(found, wanted, bound):
    assert set(found) == set(wanted)
    for name in wanted:
        scale = np.linalg.norm(wanted[name])
        assert scale > 0 and np.linalg.norm(found[name] - wanted[name]) <= bound * scale, name


@pytest.mark.parametrize(
    ("name", "options", "loss"),
    [
        ("feed_forward", {"activation": "gelu"}, "cross_entropy"),
        ("feed_forward", {"activation": "relu"}, "cross_entropy"),
        ("emb_mlp", {"activation": "tanh"}, "squared_error"),
        ("attention", {"positions": True}, "cross_entropy"),
        ("transformer", {"activation": "silu"}, "cross_entropy"),
    ],
)
def test_the_exact_field_is_the_derived_one(name, options, loss):
    architecture = architectures.load(name, **options)
    parameters, dataset = setting(architecture)
    exact = fields.exact(architecture, loss)
    derived = fields.from_samples(derive(architecture, loss=loss))
    assert (exact.name, derived.name) == ("exact", "derived")
    data = exact.data(dataset)
    wanted = flow(exact, parameters, data)
    assert_close(flow(derived, parameters, derived.data(dataset)), wanted, 1e-12)
    # numpy and jax evaluate one set of equations.
    arrays = {k: np.asarray(v) for k, v in parameters.items()}
    assert_close(right_hand_sides(derived.equations, arrays, as_numpy(data)), wanted, 1e-12)
    lost = interpret.loss(architecture, arrays, dataset.tokens, dataset.labels, dataset.weights, kind=loss)
    for field in (exact, derived):
        assert float(run(field.loss, parameters, data)) == pytest.approx(lost, rel=1e-13)
    assert derived.axes == exact.axes == {k: v.axes for k, v in architecture.parameters.items()}


def as_numpy(data):
    return type(data)(np.asarray(data.tokens), np.asarray(data.labels), np.asarray(data.weights))


def residual_attention():
    """A residual block without mask, a label at every position."""

    def residual_attention(p, tokens):
        x = embed(p.E, tokens)
        a = softmax(dot(rename(x, position="query"), x, over="embed"), over="position")
        return dot(p.U, x + rename(dot(a, x, over="position"), query="position"), over="embed")

    return Architecture(residual_attention, {"E": ("token", "embed"), "U": ("label", "embed")})


def cut_logits(architecture, parameters, dataset, highest):
    """The Taylor polynomial in ε of the logits of εθ at ε = 1, by Taylor mode."""
    tokens = jnp.asarray(np.eye(dataset.n_tokens)[dataset.tokens])

    def along(epsilon):
        scaled = {k: epsilon * v for k, v in parameters.items()}
        return interpret.evaluate(architecture, scaled, tokens, jnp)

    value, rest = jet(along, (0.0,), ([1.0] + [0.0] * (highest - 1),))
    factorials = np.cumprod(np.arange(1.0, highest + 1))
    return value + sum(term / factor for term, factor in zip(rest, factorials, strict=True))


@pytest.mark.parametrize(
    ("architecture", "degree"),
    [
        (architectures.feed_forward("gelu"), 3),
        (architectures.feed_forward("gelu"), 5),
        (architectures.emb_mlp("tanh"), 3),
        (architectures.emb_mlp("tanh"), 7),
        (residual_attention(), 4),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_cut_logits_flow_is_the_gradient_of_the_loss_of_cut_logits(architecture, degree):
    parameters, dataset = setting(architecture)
    field = fields.field(architecture, "cut-logits", degree)
    assert field.name == "cut-logits"
    data = field.data(dataset)

    def loss(p):
        logits = cut_logits(architecture, p, dataset, degree)
        return interpret.loss_of_logits(logits, data.labels, data.weights, jnp)

    wanted = {name: -value for name, value in jax.jit(jax.grad(loss))(parameters).items()}
    found = flow(field, parameters, data)
    for name, value in wanted.items():
        assert np.linalg.norm(found[name] - value) <= 1e-10 * np.linalg.norm(value), name


def asymmetry(field, parameters, data):
    """‖J − Jᵀ‖ / ‖J‖ of the field's Jacobian."""
    flat, restore = ravel_pytree(dict(parameters))

    def jacobian(theta, d):
        return jax.jacfwd(lambda at: ravel_pytree(field(0.0, restore(at), d))[0])(theta)

    found = np.asarray(run(jacobian, flat, data))
    return np.linalg.norm(found - found.T) / np.linalg.norm(found)


def test_only_the_kept_prediction_is_no_gradient_flow():
    architecture = architectures.emb_mlp("tanh")
    parameters, dataset = setting(architecture, scale=1.0)
    found = {}
    for kind, degree in [("exact", None), ("cut-logits", 3), ("expanded", 6), ("kept-prediction", 3)]:
        field = fields.field(architecture, kind, degree)
        assert field.name == kind
        found[kind] = asymmetry(field, parameters, field.data(dataset))
    assert max(found["exact"], found["cut-logits"], found["expanded"]) < 1e-12
    assert found["kept-prediction"] > 1e-2


def test_the_kept_prediction_is_that_of_the_untruncated_logits():
    """∂f cut, p exact: with the linear part of f alone, dU = E[(e_y − p(x)) h]."""
    architecture = architectures.feed_forward("tanh")
    parameters, dataset = setting(architecture)
    field = fields.field(architecture, "kept-prediction", 2)
    data = field.data(dataset)
    p = jax.nn.softmax(interpret.evaluate(architecture, parameters, data.tokens, jnp))
    h = parameters["E"][data.tokens].sum(1)
    residual = (jnp.eye(5)[data.labels] - p) * data.weights[:, None]
    np.testing.assert_allclose(flow(field, parameters, data)["U"], residual.T @ h, rtol=1e-12, atol=1e-14)


def test_the_expanded_flow_is_the_gradient_of_the_expanded_loss():
    """Its terms up to the degree, by Taylor mode of the loss itself."""
    architecture = architectures.feed_forward("gelu")
    parameters, dataset = setting(architecture)
    field = fields.field(architecture, "expanded", 4)
    data = field.data(dataset)
    tokens = jnp.asarray(np.eye(4)[dataset.tokens])

    def expanded_loss(p):
        def along(epsilon):
            scaled = {k: epsilon * v for k, v in p.items()}
            return interpret.loss(architecture, scaled, tokens, data.labels, data.weights, jnp)

        value, rest = jet(along, (0.0,), ([1.0, 0.0, 0.0, 0.0],))
        return value + sum(term / factor for term, factor in zip(rest, (1, 2, 6, 24), strict=True))

    wanted = {name: -value for name, value in run(jax.grad(expanded_loss), parameters).items()}
    assert_close(flow(field, parameters, data), wanted, 1e-10)


def test_names_of_derived_fields():
    architecture = architectures.feed_forward("tanh")
    assert fields.from_samples(derive(architecture, 2)).name == "kept-prediction"
    assert fields.from_samples(derive(architecture, 2, prediction="of-truncated-logits")).name == "cut-logits"
    assert fields.from_samples(derive(architecture, 2, ())).name == "expanded"
    assert fields.from_samples(derive(architecture, 2, ()), name="mine").name == "mine"


def test_more_can_be_kept_in_a_field():
    attention = architectures.attention()
    field = fields.field(attention, "cut-logits", 4, keep=("attention",))
    assert set(field.equations.keep) == {"attention", "prediction"}
    parameters, dataset = setting(attention)
    data = field.data(dataset)
    found, wanted = flow(field, parameters, data), flow(fields.exact(attention), parameters, data)
    # With the weights kept nothing of f = U O Σ a V w is cut in these.
    assert_close({name: found[name] for name in "UOV"}, {name: wanted[name] for name in "UOV"}, 1e-12)


@pytest.mark.parametrize(
    ("kind", "degree", "words"),
    [
        ("cutlogits", 3, "unknown flow 'cutlogits'; did you mean 'cut-logits'"),
        ("expanded", None, "the flow 'expanded' needs a degree"),
        ("expanded", 5, "nearest degrees are 4 and 6"),
    ],
)
def test_fields_that_cannot_be(kind, degree, words):
    with pytest.raises(UserError, match=words):
        fields.field(architectures.feed_forward("tanh"), kind, degree)


def test_labels_must_be_where_the_architecture_predicts():
    sequence, position = architectures.linear(), architectures.transformer("tanh")
    _, one_each = setting(sequence)
    _, every = setting(position)
    with pytest.raises(UserError, match="one label per sequence, but transformer predicts one per position"):
        fields.exact(position).data(one_each)
    with pytest.raises(UserError, match="one label per position, but linear predicts one per sequence"):
        fields.from_samples(derive(sequence)).data(every)
