"""The stock architectures against models written by hand: values, gradients, and derived equations with all kept."""

import numpy as np
import pytest
import torch
import torch_models

from compare.certificate import gradient_flow
from theory import architectures, interpret
from theory.evaluation import Data, right_hand_sides
from theory.evolution import derive

MODELS = {
    "linear": (architectures.linear(), torch_models.linear),
    "feed_forward gelu": (architectures.feed_forward("gelu"), torch_models.feed_forward("gelu")),
    "feed_forward quadratic": (architectures.feed_forward("quadratic"), torch_models.feed_forward("quadratic")),
    "feed_forward relu": (architectures.feed_forward("relu"), torch_models.feed_forward("relu")),
    "emb_mlp tanh": (architectures.emb_mlp("tanh"), torch_models.emb_mlp("tanh")),
    "attention": (architectures.attention(), torch_models.attention(False)),
    "attention with positions": (architectures.attention(positions=True), torch_models.attention(True)),
    "transformer of two blocks": (architectures.transformer("silu", 2), torch_models.transformer("silu", 2)),
}
SIZES = {"token": 5, "label": 6, "position": 4, "embed": 3, "hidden": 7, "key": 2, "value": 8}


@pytest.mark.parametrize("name", MODELS)
def test_stock_architectures_are_what_the_mathematics_says(name):
    architecture, model = MODELS[name]
    rng = np.random.default_rng(7)
    sizes = {a: n for a, n in SIZES.items() if a in {*architecture.axes, "label"}}
    parameters = {k: rng.normal(0, 0.7, shape) for k, shape in architecture.shapes(sizes).items()}
    tokens = rng.integers(0, 5, (9, 4))
    labels = rng.integers(0, 6, tokens.shape if architecture.labels_per_position else 9)
    data = Data(tokens, labels, rng.dirichlet(np.ones(9)))

    tensors = {k: torch.tensor(v, requires_grad=True) for k, v in parameters.items()}
    value = torch_models.loss(model, tensors, tokens, labels, data.weights)
    flow = dict(zip(tensors, torch.autograd.grad(-value, list(tensors.values())), strict=True))

    logits = torch.stack([model(tensors, x) for x in tokens]).detach().numpy()
    found = interpret.evaluate(architecture, parameters, tokens)
    assert found.shape == logits.shape
    assert np.linalg.norm(found - logits) <= 1e-10 * np.linalg.norm(logits)
    assert interpret.loss(architecture, parameters, tokens, labels, data.weights) == pytest.approx(
        value.item(), rel=1e-10
    )
    differentiated = gradient_flow(architecture, parameters, data, "cross_entropy")
    derived = right_hand_sides(derive(architecture), parameters, data)
    for parameter, wanted in flow.items():
        scale = np.linalg.norm(wanted)
        assert scale > 1e-3
        assert np.linalg.norm(differentiated[parameter] - wanted.numpy()) <= 1e-10 * scale, parameter
        assert np.linalg.norm(derived[parameter] - wanted.numpy()) <= 1e-10 * scale, parameter
