"""Labelled results: names, round trip through netCDF, messages."""

import os

import numpy as np
import pytest

from simulate.trajectory import (
    Trajectory,
    load_trajectories,
    parameter_dims,
    save_trajectories,
)
from theory.errors import UserError

ATTRIBUTES = {
    "kind": "flow",
    "name": "exact",
    "status": "completed",
    "message": None,
    "half_time": None,
    "resumed": True,
    "seeds": [3, 5],
    "tolerances": {"rtol": 1e-8, "atol": None},
    "steps_accepted": 12,
    "steps_rejected": 2,
    "seconds_compile": 0.5,
    "seconds_run": 0.25,
    "one_third": 1 / 3,
}
AXES = {"E": ("token", "embed"), "P": ("embed", "embed"), "U": ("label", "embed")}


def example(seeds=None, **changes):
    generator = np.random.default_rng(0)
    lead = () if seeds is None else (len(seeds),)
    sizes = {"token": 4, "embed": 3, "label": 2}
    parameters = {
        name: generator.normal(size=(*lead, 3, *(sizes[axis] for axis in axes))) for name, axes in AXES.items()
    }
    series = {"loss": generator.normal(size=(*lead, 3))}
    arguments = dict(axes=AXES, attributes=ATTRIBUTES, seeds=seeds) | changes
    return Trajectory.from_arrays([0.0, 0.5, 1.0], parameters, series, **arguments)


def test_dimensions_are_called_like_their_axes():
    trajectory = example()
    assert trajectory["E"].dims == ("time", "token", "embed")
    assert trajectory["P"].dims == ("time", "embed", "embed_P")
    assert trajectory["loss"].dims == ("time",)
    assert parameter_dims("T", ("a", "a", "a")) == ("a", "a_T", "a_T_3")
    assert trajectory.parameter_names == ("E", "P", "U")
    assert trajectory.series_names == ("loss",)


@pytest.mark.parametrize("seeds", [None, (7, 1)])
def test_netcdf_round_trip_keeps_every_bit_and_attribute(tmp_path, seeds):
    trajectory = example(seeds)
    trajectory.save(tmp_path / "run.nc")
    loaded = Trajectory.load(tmp_path / "run.nc")
    assert loaded.attributes == ATTRIBUTES
    assert type(loaded.attributes["resumed"]) is bool
    assert type(loaded.attributes["steps_accepted"]) is int
    assert loaded.seeds == seeds
    assert loaded.parameter_names == trajectory.parameter_names
    for name, variable in trajectory.data.variables.items():
        assert loaded.data[name].dims == variable.dims
        assert loaded.data[name].dtype == variable.dtype
        np.testing.assert_array_equal(loaded.data[name].values, variable.values)
    assert os.listdir(tmp_path) == ["run.nc"]


def test_groups_of_one_file_keep_their_order_and_sizes(tmp_path):
    first, second = example(), example((1, 2))
    save_trajectories(tmp_path / "all.nc", {"exact": first, "cut-logits": second})
    loaded = load_trajectories(tmp_path / "all.nc")
    assert list(loaded) == ["exact", "cut-logits"]
    np.testing.assert_array_equal(loaded["exact"]["E"], first["E"])
    np.testing.assert_array_equal(loaded["cut-logits"]["E"], second["E"])
    with pytest.raises(UserError, match="did you mean 'exact'"):
        Trajectory.load(tmp_path / "all.nc", group="exat")
    with pytest.raises(UserError, match="name a group"):
        Trajectory.load(tmp_path / "all.nc")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    example().save(tmp_path / "run.nc")
    before = (tmp_path / "run.nc").read_bytes()
    with pytest.raises(UserError, match="cannot be stored"):
        example(attributes=ATTRIBUTES | {"bad": object()}).save(tmp_path / "run.nc")
    assert os.listdir(tmp_path) == ["run.nc"]
    assert (tmp_path / "run.nc").read_bytes() == before


def test_parameters_by_index_and_seed():
    trajectory = example((7, 1))
    both = trajectory.parameters(1)
    assert both["E"].shape == (2, 4, 3)
    np.testing.assert_array_equal(trajectory.parameters(1, seed=1)["E"], both["E"][1])
    np.testing.assert_array_equal(trajectory.final["U"], trajectory["U"][:, -1])
    with pytest.raises(UserError, match="no save time number 3"):
        trajectory.parameters(3)
    with pytest.raises(UserError, match="no member has seed 4"):
        trajectory.parameters(0, seed=4)


def test_at_takes_save_times_only():
    trajectory = example()
    moment = trajectory.at(0.5 * (1 + 1e-12))
    np.testing.assert_array_equal(moment["E"], trajectory["E"][1])
    assert float(moment["time"]) == 0.5
    assert float(trajectory.at(0.0)["loss"]) == float(trajectory["loss"][0])
    with pytest.raises(UserError, match="the nearest are 0.5, 1"):
        trajectory.at(0.8)


def test_parameters_stored_at_some_times_only(tmp_path):
    values = {"E": np.arange(8.0).reshape(2, 4)}
    series = {"loss": np.arange(3.0)}
    trajectory = Trajectory.from_arrays(
        [0.0, 0.5, 1.0],
        values,
        series,
        axes={"E": ("token",)},
        attributes=ATTRIBUTES,
        parameter_times=[0.0, 1.0],
    )
    trajectory.save(tmp_path / "run.nc")
    loaded = Trajectory.load(tmp_path / "run.nc")
    np.testing.assert_array_equal(loaded.parameters(2)["E"], values["E"][1])
    np.testing.assert_array_equal(loaded.at(1.0)["E"], values["E"][1])
    assert "E" not in loaded.at(0.5) and float(loaded.at(0.5)["loss"]) == 1.0
    with pytest.raises(UserError, match="no parameters are stored at t = 0.5"):
        loaded.parameters(1)


@pytest.mark.parametrize(
    ("parameters", "series", "words"),
    [
        ({"E": np.zeros((2, 4))}, {}, r"'E' must have the shape \(3, token\), but has shape .2, 4"),
        ({"E": np.zeros(3)}, {}, "'E' must have the shape"),
        ({"E": np.zeros((3, 4)), "F": np.zeros((3, 5))}, {}, "size 5 in 'F', but 4 in 'E'"),
        ({"E": np.zeros((3, 4))}, {"E": np.zeros(3)}, "two quantities"),
        ({"time": np.zeros((3, 4))}, {}, "two quantities"),
    ],
)
def test_misfits_are_named(parameters, series, words):
    with pytest.raises(UserError, match=words):
        Trajectory.from_arrays(
            [0.0, 1.0, 2.0],
            parameters,
            series,
            axes={"E": ("token",), "F": ("token",)},
            attributes=ATTRIBUTES,
        )


def test_missing_names_and_files(tmp_path):
    with pytest.raises(UserError, match="did you mean 'loss'"):
        example()["los"]
    with pytest.raises(UserError, match="no trajectory file"):
        Trajectory.load(tmp_path / "none.nc")
    (tmp_path / "text.nc").write_text("no netCDF")
    with pytest.raises(UserError, match="cannot be read"):
        Trajectory.load(tmp_path / "text.nc")
    with pytest.raises(UserError, match="no folder"):
        example().save(tmp_path / "missing" / "run.nc")


def test_summary_shows_shapes_memory_steps_and_status():
    trajectory = example()
    assert repr(trajectory) == ("Trajectory(flow 'exact', completed, 3 times to 1, parameters E, P, U, 696 B)")
    summary = trajectory.summary()
    assert "E           (time 3, token 4, embed 3)  288 B" in summary
    assert "12 accepted, 2 rejected" in summary
    assert "0.50 compiling, 0.25 running" in summary
