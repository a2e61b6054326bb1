"""Distances to the classic activations, and the nearest of them."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from splash_units import Splash
from splash_units.shape import classic_distances, fit, nearest_classic, segments

FAR_AND_FINE = [0.05 * s for s in range(120)]


def approximating(f: object) -> Splash:
    return Splash(hinges=FAR_AND_FINE, init=f)  # type: ignore[arg-type]


def leaky(slope: float) -> Splash:
    return Splash(init=lambda x: torch.where(x < 0, slope * x, x))


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("identity", lambda x: x),
        ("relu", torch.relu),
        ("abs", torch.abs),
        ("hardtanh", F.hardtanh),
        ("tanh", torch.tanh),
        ("sigmoid", lambda x: torch.sigmoid(x) - 0.5),
        ("elu", F.elu),
        ("selu", F.selu),
        ("gelu", F.gelu),
        ("silu", F.silu),
    ],
)
def test_a_unit_made_from_a_classic_is_nearest_to_it(name: str, f: object) -> None:
    found = nearest_classic(approximating(f))
    assert found.name == name
    assert found.distance < 2e-3
    assert found.slope is None


def test_softplus_is_moved_to_the_origin() -> None:
    unit = fit(lambda x: F.softplus(x) - math.log(2), -6, 6, 63).unit
    found = nearest_classic(unit)
    assert found.name == "softplus"
    assert found.distance < 1e-3


@pytest.mark.parametrize("slope", [0.01, 0.1, 0.37, 0.9])
def test_the_best_leaky_slope_is_found(slope: float) -> None:
    found = nearest_classic(leaky(slope))
    assert found.name == "leaky_relu"
    assert found.slope == pytest.approx(slope, abs=1e-6)
    assert found.distance < 1e-7


@pytest.mark.parametrize("slope", [-0.2, 1.3])
def test_leaky_slopes_stay_between_relu_and_identity(slope: float) -> None:
    nearest = nearest_classic(leaky(slope))
    assert nearest.name == ("relu" if slope < 0 else "identity")
    # E[(slope·x − kept·x)²] over x < 0 is (slope − kept)²/2.
    kept = 0.0 if slope < 0 else 1.0
    assert nearest.distance == pytest.approx(abs(slope - kept) / math.sqrt(2), abs=1e-6)


def test_distances_in_closed_form() -> None:
    distances = classic_distances(Splash())  # h = relu
    assert distances["relu"] == 0.0
    assert distances["leaky_relu"] == pytest.approx(0.0, abs=1e-12)
    # relu − identity = max(0, −x), whose mean square is 1/2; relu − abs likewise.
    assert distances["identity"].item() == pytest.approx(math.sqrt(0.5), abs=1e-12)
    assert distances["abs"].item() == pytest.approx(math.sqrt(0.5), abs=1e-12)
    # E[(relu − elu)²] = E[(eˣ − 1)²; x < 0] = e²Φ(−2) − 2√e·Φ(−1) + 1/2.
    phi = torch.special.ndtr(torch.tensor([-2.0, -1.0], dtype=torch.float64))
    square = math.exp(2) * phi[0] - 2 * math.exp(0.5) * phi[1] + 0.5
    assert distances["elu"].item() == pytest.approx(math.sqrt(square), abs=1e-12)


def test_distance_agrees_with_a_fine_sum_for_a_learned_shape() -> None:
    torch.manual_seed(0)
    unit = Splash(11, init="random")
    x = torch.linspace(-10, 10, 2_000_001, dtype=torch.float64)
    weight = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    summed = (weight * (segments(unit)(x) - torch.tanh(x)).square()).sum().sqrt()
    assert classic_distances(unit)["tanh"].item() == pytest.approx(summed.item(), abs=1e-9)


def test_given_samples_replace_the_normal() -> None:
    unit = Splash(init=lambda x: torch.where(x < -1, x + 1, torch.relu(x)))
    samples = torch.tensor([[-0.5, 0.25], [1.5, 3.0]])
    near_zero = nearest_classic(unit, samples)
    assert (near_zero.name, near_zero.distance) == ("relu", 0.0)
    further: Tensor = torch.cat([samples, torch.tensor([[-3.0, 2.0]])])
    expected = math.sqrt((-2.0) ** 2 / 6)  # h(−3) = −2 is the only one that differs from relu's
    assert classic_distances(unit, further)["relu"].item() == pytest.approx(expected, abs=1e-6)


def test_many_shapes_at_once() -> None:
    unit = Splash(share="channel", features=2)
    with torch.no_grad():
        unit.a_neg[0, 1] = 1.0  # the second channel is |x|
    distances = classic_distances(unit)
    assert distances["relu"][0] == distances["abs"][1] == 0.0
    assert distances["relu"][1].item() == pytest.approx(math.sqrt(0.5), abs=1e-12)
    assert nearest_classic(segments(unit)[1]).name == "abs"
    with pytest.raises(ValueError, match=r"2 shapes .*shape\[index\]"):
        nearest_classic(unit)


@pytest.mark.parametrize("samples", [torch.empty(0), torch.tensor([1.0, math.nan])])
def test_bad_samples(samples: Tensor) -> None:
    with pytest.raises(ValueError, match="samples must be finite and not empty"):
        nearest_classic(Splash(), samples)


def test_a_shape_that_has_diverged_resembles_nothing() -> None:
    unit = Splash()
    with torch.no_grad():
        unit.a_pos[1] = math.nan
    with pytest.raises(ValueError, match="not finite"):
        nearest_classic(unit)
