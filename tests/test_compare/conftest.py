"""Small set-ups shared by the tests of compare."""

import pytest
from snapshot_files import RATE, STEPS, write_npz

from compare.training import train
from theory import architectures
from theory.data import arithmetic
from theory.initial import initialise


@pytest.fixture(scope="session")
def small():
    """Feed-forward GELU on addition, N = 5, width 6."""
    architecture = architectures.load("feed_forward")
    dataset = arithmetic.add(numbers=5)
    initial = initialise(architecture, {**dataset.sizes, "embed": 6}, scale=0.3, seed=3)
    return architecture, dataset, initial


@pytest.fixture(scope="session")
def states(small):
    """Step → parameters, of a training of `small`."""
    run = train(*small, learning_rate=RATE, save=[RATE * step for step in STEPS])
    return {step: run.parameters(i) for i, step in enumerate(STEPS)}


@pytest.fixture
def folder(tmp_path, states):
    """These states as somebody else's run."""
    (tmp_path / "run").mkdir()
    for step, state in states.items():
        write_npz(tmp_path / "run", step, state)
    return tmp_path / "run"
