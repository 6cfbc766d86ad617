"""The cache of compiled programs: where it is, what it does for a second process, and that it can be turned off."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from simulate import cache
from theory.errors import UserError


@pytest.fixture(autouse=True)
def restored():
    """jax keeps its cache in global settings: put them back."""
    names = (
        "jax_compilation_cache_dir",
        "jax_compilation_cache_max_size",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_the_directory_is_the_operating_system_s_and_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_directory() == tmp_path / "context-staircase" / "compiled"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.default_directory().parts[-4:] == ("Library", "Caches", "context-staircase", "compiled")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert cache.default_directory() == tmp_path / "context-staircase" / "compiled"

    monkeypatch.setenv(cache.VARIABLE, "off")
    jax.config.update("jax_compilation_cache_dir", None)
    assert cache.enable() is None and jax.config.jax_compilation_cache_dir is None
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "own"))
    assert cache.enable() == tmp_path / "own" and jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
    monkeypatch.delenv(cache.VARIABLE)
    assert cache.enable() == tmp_path / "own"  # jax was told already
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="STAIRCASE_CACHE_DIR=off does without"):
        cache.enable(tmp_path / "file" / "below")


CHILD = """
import sys
import jax.numpy as jnp, numpy as np
from jax import monitoring
from simulate import cache
from simulate.flow import integrate

class Decay:
    name = "decay"
    def data(self, dataset): return jnp.asarray(dataset)
    def __call__(self, t, parameters, data): return {"y": -data * jnp.tanh(parameters["y"])}

found = []
monitoring.register_event_listener(lambda name, **_: found.append(name))
cache.enable(sys.argv[1])
run = integrate(Decay(), 1.0, {"y": np.ones(3)}, until=1.0)
print(sum("cache_hits" in name for name in found), run["loss" if "loss" in run.data else "y"].values[-1].tolist())
"""


def test_a_second_process_compiles_nothing_and_computes_the_same(tmp_path):
    def run():
        path = os.pathsep.join(map(str, sys.path))
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        hits, _, numbers = done.stdout.partition(" ")
        return int(hits), numbers, {file.name for file in Path(tmp_path).iterdir() if file.name.endswith("-cache")}

    first, second = run(), run()
    assert any(name.startswith("jit_advance") for name in first[2])
    assert first[0] == 0 and second[0] >= 2  # the start and the steps
    assert second[1] == first[1] and second[2] >= first[2]
