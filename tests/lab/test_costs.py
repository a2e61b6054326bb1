"""Costs: units that take turns, and what is kept of it."""

import pytest
import tiny_lab  # noqa: F401 - registers the network "tiny" and the data set "blobs"
import torch

from splash_units.lab.costs import measure
from splash_units.lab.spec import CostSpec, UnitChoice
from splash_units.lab.store import Store

RELU, SPLASH = UnitChoice(label="ReLU", unit="relu"), UnitChoice(label="SPLASH", unit="splash")
MAXOUT = UnitChoice(label="maxout(6)", unit="maxout", options={"k": 6})


def spec(*units):
    return CostSpec(model="tiny", data="blobs", units=units, batch_size=16, rounds=3)


def test_costs_are_medians_and_ratios_to_relu(tmp_path):
    found = measure(spec(RELU, SPLASH, MAXOUT), Store(tmp_path), threads=1)
    result = found.result()
    assert result["labels"] == ["ReLU", "SPLASH", "maxout(6)"]
    seconds = found.tensors()["seconds"]
    assert seconds.shape == (3, 3)
    medians = seconds.median(1).values
    assert result["seconds_per_step"] == pytest.approx(medians.tolist())
    assert result["ratio"] == pytest.approx((medians / medians[0]).tolist())
    assert result["ratio"][0] == 1
    for (low, high), ratio in zip(result["quantiles"], result["ratio"], strict=True):
        assert low <= ratio <= high
    assert result["failures"] == [None, None, None]
    assert result["steps_an_epoch"] == 40
    assert found.record()["threads"] == 1
    assert measure(spec(RELU, SPLASH, MAXOUT), Store(tmp_path)).result() == result


def test_a_unit_that_fails_is_said_and_the_others_are_measured(tmp_path):
    broken = UnitChoice(label="broken", unit="splash", options={"num_hinges": 4})
    result = measure(spec(RELU, broken, SPLASH), Store(tmp_path), threads=1).result()
    assert result["ratio"][1] is None
    assert "num_hinges" in result["failures"][1]
    assert result["ratio"][2] > 0


def test_two_units_of_one_label_are_refused(tmp_path):
    with pytest.raises(ValueError, match="one label"):
        measure(spec(RELU, SPLASH, SPLASH), Store(tmp_path))


def test_the_threads_are_given_back(tmp_path):
    before = torch.get_num_threads()
    measure(spec(RELU, SPLASH), Store(tmp_path), threads=before + 1)
    assert torch.get_num_threads() == before
