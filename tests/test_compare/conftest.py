"""Small set-ups shared by the tests of compare."""

import pytest

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
