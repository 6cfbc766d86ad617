"""Qwen2 of `transformers` through `train`: the same steps as plain torch, resumed bit for bit, and what is refused."""

import sys

import numpy as np
import pytest
import torch
from test_snapshots import Killed, killed_at, same

from compare.language_models import Qwen2
from compare.optimisers import Optimiser
from compare.training import train
from theory.data import arithmetic
from theory.data.dataset import Dataset
from theory.errors import UserError

V, LENGTH = 11, 5


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).integers(0, V, (12, LENGTH + 1))


@pytest.fixture(scope="module")
def text(rows):
    return Dataset(tokens=rows[:, :-1], labels=rows[:, 1:], n_tokens=V, n_labels=V, name="rows")


@pytest.fixture(scope="module")
def model():
    return Qwen2(V, width=8, layers=2, heads=2, key_value_heads=1, hidden=12, length=LENGTH)


def plain(model, initial):
    """The model of `transformers` in float64, with our arrays under its own names."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=V,
        hidden_size=model.width,
        intermediate_size=model.hidden,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.key_value_heads,
        max_position_embeddings=LENGTH + 1,
        tie_word_embeddings=model.tied,
    )
    made = Qwen2ForCausalLM(config).double()
    ours = {"model.embed_tokens.weight": "E", "lm_head.weight": "U"}
    names = [*dict(made.named_parameters())]
    state = {name: torch.tensor(initial[ours.get(name, name)]) for name in names}
    made.load_state_dict(state, strict=not model.tied)
    return made


# Over two steps the learning rate rises to 1 / 1.8 of its height, and is then down at the half.
FALLING = Optimiser("adamw", weight_decay=0.1, warmup=0.9, final_ratio=0.5)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", FALLING], ids=["sgd", "adamw", "warm-up"])
@pytest.mark.parametrize("tied", [False, True])
def test_steps_equal_those_of_plain_torch(model, rows, text, optimizer, tied):
    model = Qwen2(V, width=8, layers=2, heads=2, key_value_heads=1, hidden=12, length=LENGTH, tied=tied)
    initial = model.initial(gamma=0.4, seed=1)
    run = train(model, text, initial, learning_rate=0.1, steps=2, save=[0.0, 0.1, 0.2], optimizer=optimizer)
    reference = plain(model, initial)
    if optimizer == "sgd":
        stepping = torch.optim.SGD(reference.parameters(), lr=0.1)
    else:
        decay = 0.1 if optimizer is FALLING else 0.0
        stepping = torch.optim.AdamW(reference.parameters(), lr=0.1, weight_decay=decay)
    for step in range(3):
        # Whole rows go in, and the last position has no label. (The loss of `transformers` itself is in float32.)
        logits = reference(input_ids=torch.tensor(rows)).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(rows[:, 1:]).flatten())
        np.testing.assert_allclose(run["loss"].values[step], loss.item(), rtol=1e-10)
        got = {"E": reference.model.embed_tokens.weight, "U": reference.lm_head.weight}
        for name in model.kept:
            np.testing.assert_allclose(
                run.parameters(step)[name], got[name].detach().numpy(), rtol=1e-9, atol=1e-12, err_msg=f"{name} {step}"
            )
        stepping.zero_grad()
        loss.backward()
        if optimizer is FALLING:
            stepping.param_groups[0]["lr"] = 0.1 * (1 / 1.8, 0.5, 0.5)[step]
        stepping.step()
    assert set(run.parameters(0)) == set(model.kept) == ({"E"} if tied else {"E", "U"})
    assert np.abs(run.parameters(2)["E"] - initial["E"]).max() > 1e-3
    assert run.attributes["predicted_time_axis"] == (optimizer == "sgd")


@pytest.mark.parametrize("number", [2, 3])
def test_a_killed_training_ends_bit_for_bit_like_an_unbroken_one(model, text, tmp_path, number):
    options = {
        "learning_rate": 0.01,
        "save": [0.0, 0.03, 0.07, 0.12],
        "optimizer": Optimiser("adamw", weight_decay=0.1, warmup=0.3, final_ratio=0.1),
        "batch": 5,
        "seeds": (3, 1),
        "dtype": "float32",
        "loss_samples": 6,
    }
    arrays = [model.initial(gamma=0.6, seed=seed) for seed in options["seeds"]]
    whole = train(model, text, arrays, **options)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        killed_at(patch, "step-", number)
        train(model, text, arrays, snapshots=tmp_path / "run", **options)
    resumed = train(model, text, arrays, snapshots=tmp_path / "run", **options)
    assert resumed.attributes["resumed_from_step"] == [0, 3, 7][number - 2]
    same(whole, resumed)
    with pytest.raises(UserError, match="loss_samples"):
        train(model, text, arrays, snapshots=tmp_path / "run", **options | {"loss_samples": 7})


def test_what_is_saved_can_be_chosen(model, text):
    gate = "model.layers.1.mlp.gate_proj.weight"
    run = train(model, text, model.initial(gamma=0.5), learning_rate=0.1, steps=1, save=[0.0], parameters=["U", gate])
    assert run["U"].dims == ("time", "label", "embed") and run[gate].dims == ("time", "hidden", "embed")
    assert "E" not in run.data and "norm_E" not in run.data
    with pytest.raises(UserError, match="no parameter 'V' to save"):
        train(model, text, model.initial(gamma=0.5), learning_rate=0.1, steps=1, save=[0.0], parameters=["V"])


def test_the_loss_is_taken_on_as_many_samples_as_asked_for(model, text):
    initial = model.initial(gamma=0.3)
    run = train(model, text, initial, learning_rate=0.1, steps=1, save=[0.0], loss_samples=4)
    chosen = np.array([0, 4, 7, 11])
    logits = model.module(initial)(torch.tensor(text.tokens[chosen]))
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(text.labels[chosen]).flatten())
    assert run["loss"].values[0] == pytest.approx(expected.item(), rel=1e-12)
    assert run.attributes["loss_samples"] == 4


def test_initial_arrays_have_the_scale_of_gamma():
    model = Qwen2(200, width=64, layers=1, heads=4, hidden=96)
    small, again, other = (model.initial(gamma=0.8, seed=seed) for seed in (0, 0, 1))
    assert sum(array.size for array in small.values()) == model.size
    for name, array in small.items():
        assert array.shape == model.shapes[name] and np.array_equal(array, again[name])
        if array.ndim == 1:
            assert np.all(array == (0.0 if name.endswith("bias") else 1.0))
            assert model.parameters[name].weight == (1 if name.endswith("bias") else 0)
        else:
            assert array.std() == pytest.approx(array.shape[1] ** -0.8, rel=0.05), name
            assert not np.array_equal(array, other[name])
    assert sum(name.endswith("bias") for name in small) == 3
    # Two names, two streams: no two matrices of one shape are the same numbers.
    assert not np.array_equal(small["E"], small["U"])


def test_the_learning_rate_rises_and_falls_by_half_a_cosine():
    optimiser = Optimiser("adamw", warmup=0.1, final_ratio=0.2)
    factors = np.array([optimiser.rate_factor(step, 100) for step in range(100)])
    np.testing.assert_allclose(factors[:10], np.arange(1, 11) / 10)
    np.testing.assert_allclose(factors[54], 0.6)
    np.testing.assert_allclose(factors[-1], 0.2)
    assert np.all(np.diff(factors[9:]) < 0)
    assert all(Optimiser("adam").rate_factor(step, 100) == 1 for step in (0, 50, 99))
    assert Optimiser("adam").to_dict() == {"name": "adam", "weight_decay": 0.0, "betas": [0.9, 0.999], "epsilon": 1e-8}
    assert optimiser.to_dict()["warmup"] == 0.1
    for options in ({"warmup": 1.0}, {"final_ratio": 1.5}, {"warmup": "a"}):
        with pytest.raises(UserError, match=next(iter(options))):
            Optimiser("adamw", **options)
    with pytest.raises(UserError, match="belong to adam"):
        Optimiser("sgd", warmup=0.1)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"vocabulary": 0}, "vocabulary of qwen2 must be a whole number of at least 1, found 0"),
        ({"width": 12, "heads": 4}, "multiple of 2 × heads = 8"),
        ({"heads": 4, "key_value_heads": 3}, "multiple of key_value_heads"),
    ],
)
def test_a_size_out_of_range_is_named(options, part):
    with pytest.raises(UserError, match=part):
        Qwen2(**{"vocabulary": 10, "width": 8, "heads": 1} | options)


def test_what_does_not_fit_is_told_in_a_sentence(model, text):
    initial = model.initial(gamma=0.5)
    with pytest.raises(UserError, match="one label per sequence, but qwen2 predicts one per position"):
        train(model, arithmetic.add(numbers=3), initial, learning_rate=0.1, steps=1, save=[0.0])
    with pytest.raises(UserError, match="'E' has 11 places on axis 'token', but dataset 'rows' has 12"):
        more = Dataset(tokens=text.tokens, labels=text.labels, n_tokens=V + 1, n_labels=V + 1, name="rows")
        train(model, more, initial, learning_rate=0.1, steps=1, save=[0.0])
    with pytest.raises(UserError, match="one by one"):
        train(model, text, initial, learning_rate=0.1, steps=1, save=[0.0], batch=2, seeds=(0, 1), together="faster")
    short = Qwen2(V, width=8, layers=1, heads=1, length=LENGTH - 1)
    with pytest.raises(UserError, match="at most 4 tokens, found 5"):
        train(short, text, short.initial(gamma=0.5), learning_rate=0.1, steps=1, save=[0.0])
    with pytest.raises(UserError, match="no parameter 'Q' of qwen2"):
        train(model, text, initial, learning_rate=0.1, steps=1, save=[0.0], frozen=["Q"])


def test_without_the_package_its_name_is_told(monkeypatch):
    for name in [*sys.modules]:
        if name.split(".")[0] == "transformers":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs the package transformers: pip install .*\[models\]"):
        Qwen2(10, width=8, heads=1).initial(gamma=0.5)
