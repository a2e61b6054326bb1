"""`convert`: a unit starts as what it replaces, exactly or as near as its hinges allow."""

import pytest
import torch
from torch import nn

from convertible import (
    units_of,
)
from splash_units import Splash
from splash_units.convert import FITTED, convert


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    "activation",
    [
        nn.ReLU6(),
        nn.LeakyReLU(),
        nn.LeakyReLU(0.3),
        nn.Hardtanh(),
        nn.Hardtanh(-0.3, 1.7),
        nn.Hardtanh(0.0, 4.0),
        nn.Hardtanh(-2.0, 0.0),
        nn.PReLU(init=0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("num_hinges", [1, 3, 7, 11])
def test_piecewise_linear_activations_are_exact_up_to_rounding(
    activation: nn.Module, num_hinges: int
) -> None:
    unit, report = convert(activation, num_hinges=num_hinges, return_report=True)
    assert report.changed[0].exactness == "exact"
    x = torch.linspace(-100, 100, 4001)
    torch.testing.assert_close(unit(x), activation(x), rtol=0, atol=100 * 2**-23)
    assert report.largest_error <= 8 * 2**-24
    assert isinstance(unit, Splash)
    assert unit.num_hinges >= num_hinges


def test_a_channelwise_prelu_becomes_a_channelwise_unit() -> None:
    prelu = nn.PReLU(5)
    with torch.no_grad():
        prelu.weight.uniform_(-1, 1)
    unit, report = convert(prelu, return_report=True)
    assert isinstance(unit, Splash)
    assert (unit.share, unit.features) == ("channel", (5,))
    assert report.largest_error <= 8 * 2**-24
    for shape in ((4, 5), (4, 5, 3), (4, 5, 3, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(unit(x), prelu(x))


def test_a_prelu_is_exact_for_each_neuron_too() -> None:
    prelu = nn.PReLU(5)
    with torch.no_grad():
        prelu.weight.uniform_(-1, 1)
    model = nn.Sequential(nn.Conv2d(2, 5, 1), prelu)
    x = torch.randn(4, 2, 3, 3)
    network, report = convert(model, share="unit", example_inputs=x, return_report=True)
    assert units_of(network)["1"].features == (5, 3, 3)
    assert report.output_difference is not None
    assert report.output_difference < 1e-6


@pytest.mark.parametrize("kind", FITTED)
@pytest.mark.parametrize("num_hinges", [3, 7, 11])
def test_smooth_activations_are_fitted_with_their_asymptotes(
    kind: type[nn.Module], num_hinges: int
) -> None:
    activation = kind()
    unit, report = convert(activation, from_=FITTED, num_hinges=num_hinges, return_report=True)
    (change,) = report.changed
    assert change.exactness == "fitted"
    # The error that is stated is the error there is, between the points it was measured at too.
    x = torch.linspace(*change.span, 100_003)
    there_is = (unit(x) - activation(x)).abs().max().item()
    assert there_is == pytest.approx(change.largest_error, rel=0.01)
    # It does not grow beyond the stated range ...
    far = torch.tensor([-1e4, -100.0, -20.0, 20.0, 100.0, 1e4])
    off = (unit(far) - activation(far)).abs() / far.abs().clamp(min=100)
    assert off.max() < 1e-4
    # ... and is what so few segments can do.
    assert change.largest_error < {3: 0.4, 7: 0.054, 11: 0.027}[num_hinges]


def test_more_hinges_fit_better() -> None:
    errors = [
        convert(nn.SiLU(), from_=nn.SiLU, num_hinges=n, return_report=True)[1].largest_error
        for n in (3, 5, 7, 9, 11, 21)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 5


def test_options_of_a_smooth_activation_count() -> None:
    for activation in (nn.ELU(0.5), nn.CELU(1.5), nn.GELU("tanh")):
        unit = convert(activation, from_=FITTED)
        x = torch.linspace(-8, 8, 1001)
        assert (unit(x) - activation(x)).abs().max() < 0.07


def test_given_hinges_are_kept() -> None:
    hinges = (0.0, 0.7, 3.0)
    unit, report = convert(nn.Tanh(), from_=nn.Tanh, hinges=hinges, return_report=True)
    assert unit.hinges.tolist() == pytest.approx(hinges)
    assert report.changed[0].largest_error < 0.25
    unit, report = convert(nn.Hardtanh(-0.7, 3.0), hinges=hinges, return_report=True)
    assert report.changed[0].exactness == "exact"
    with pytest.raises(ValueError, match=r"corner at 6.*hinges"):
        convert(nn.ReLU6(), hinges=hinges)


def test_a_constraint_that_changes_the_shape_is_not_called_exact() -> None:
    leaky = nn.LeakyReLU(0.2)
    for constraint, exactness in (("negative", "exact"), ("positive", "fitted")):
        _, report = convert(leaky, constraint=constraint, return_report=True)
        assert report.changed[0].exactness == exactness
    assert report.changed[0].largest_error == pytest.approx(1.6)
