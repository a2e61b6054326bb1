"""Every unit by name: fresh modules, the inputs they need, batch norm, options and one's own."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from splash_units import catalogue
from splash_units.catalogue import channels, names, register, unit
from splash_units.rivals import APL, Maxout, PReLU, SReLU, Swish
from splash_units.unit import BatchNormSplash, Splash

PAPER = ("relu", "leaky_relu", "prelu", "tanh", "sigmoid", "elu", "maxout", "swish", "apl")
CITED = ("selu", "srelu")
OURS = ("splash", "splash_positive", "splash_negative", "splash_fixed", "splash_literal")


@pytest.fixture
def own_names(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(catalogue, "_entries", dict(catalogue._entries))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_the_names():
    assert names() == (*PAPER, *CITED, *OURS)


@pytest.mark.parametrize(
    ("name", "kind", "parameters"),
    [
        ("relu", nn.ReLU, 0),
        ("leaky_relu", nn.LeakyReLU, 0),
        ("prelu", PReLU, 6),
        ("tanh", nn.Tanh, 0),
        ("sigmoid", nn.Sigmoid, 0),
        ("elu", nn.ELU, 0),
        ("maxout", Maxout, 0),
        ("swish", Swish, 0),
        ("apl", APL, 5),
        ("selu", nn.SELU, 0),
        ("srelu", SReLU, 24),
        *((name, Splash, 8) for name in OURS),
    ],
)
def test_each_name_gives_its_module(name, kind, parameters):
    module = unit(name)((6, 4, 4))
    assert type(module) is kind
    assert count(module) == parameters


def test_the_settings_the_paper_gives_are_the_defaults():
    assert unit("leaky_relu")(1).negative_slope == 0.01
    assert unit("elu")(1).alpha == 1.0
    assert unit("prelu")(2).weight.tolist() == [0.25, 0.25]
    assert unit("swish")(1).beta == 0.2
    assert unit("apl")(1).hinges == (-2, -1, 0, 1, 2)
    assert unit("maxout")(1).k == unit("maxout").inputs_per_output == 9
    assert unit("splash")(1).hinges.tolist() == [0, 1, 2, 2.5]


def test_the_variants_of_splash():
    assert unit("splash_positive")(1).constraint == "positive"
    assert unit("splash_negative")(1).constraint == "negative"
    assert unit("splash_literal")(1).grad_scale == 1.0
    assert not any(p.requires_grad for p in unit("splash_fixed")(1).parameters())
    assert unit("splash")(1).grad_scale == "auto"


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("sample", [(4,), (4, 3, 3)])
def test_a_unit_takes_its_inputs_and_gives_its_features(name, sample):
    kind = unit(name)
    x = numbers(2, sample[0] * kind.inputs_per_output, *sample[1:])
    assert kind(sample)(x).shape == (2, *sample)
    assert kind(sample[0])(x).shape == (2, *sample)


@pytest.mark.parametrize("name", names())
def test_tokens_have_their_channels_last(name):
    kind = unit(name)
    x = numbers(2, 5, 4 * kind.inputs_per_output)
    y = kind(4, dim=2)(x)
    assert y.shape == (2, 5, 4)
    torch.testing.assert_close(y.transpose(1, 2), kind(4)(x.transpose(1, 2)))


@pytest.mark.parametrize("name", names())
def test_every_call_gives_a_fresh_module(name):
    kind = unit(name)
    first, second = kind(3), kind(3)
    assert first is not second
    assert not {id(p) for p in first.parameters()} & {id(p) for p in second.parameters()}


@pytest.mark.parametrize("name", ["splash", "apl"])
def test_sharing_reaches_the_module(name):
    rows = {"splash": 8, "apl": 5}[name]
    assert count(unit(name, share="channel")((6, 4, 4))) == rows * 6
    assert count(unit(name, share="channel")((5, 6), dim=2)) == rows * 6
    assert count(unit(name, share="unit")((6, 4, 4))) == rows * 96
    assert count(unit(name, share="unit")(6)) == rows * 6


def test_the_papers_parameter_counts_of_the_mlp():
    widths = (256, 64, 32)
    assert sum(count(unit("splash")(w)) for w in widths) == 24
    assert sum(count(unit("splash", share="unit")(w)) for w in widths) == 2816


def test_channels():
    assert channels((7,), dim=3) == 7
    assert channels((6, 4, 5)) == 6
    assert channels((9, 6), dim=2) == channels((9, 6), dim=-1) == 6


def test_the_page_on_units_has_every_name_and_every_default():
    page = Path(__file__).parent.parent / "docs" / "units.md"
    rows = {line.split("`")[1]: line for line in page.read_text().splitlines() if line[:3] == "| `"}
    assert sorted(rows) == sorted(names())
    for name in names():
        entry = catalogue._entries[name]
        options = entry._option_parameters().values()
        said = ", ".join(f"{p.name}={p.default!r}".replace("'", '"') for p in options)
        for fixed, _ in entry.fixed:
            said = f"those of `splash` but `{fixed}`"
        assert said in rows[name]


# Batch norm.


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("sample", [(4,), (4, 3, 3)])
def test_batch_norm_comes_before_the_unit(name, sample):
    kind = unit(name)
    x = 3 * numbers(8, sample[0] * kind.inputs_per_output, *sample[1:]) + 1
    after = kind.with_batch_norm(sample, eps=1e-3)
    normed = nn.functional.batch_norm(x, None, None, training=True, eps=1e-3)
    torch.testing.assert_close(after(x), kind(sample)(normed), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("features", [4, (4,), (4, 3, 3)])
def test_the_batch_norm_is_that_of_the_shape_and_wide_enough_for_maxout(features):
    batch_norm, maxout = unit("maxout", k=3).with_batch_norm(features, momentum=0.3, affine=False)
    assert type(batch_norm) is (nn.BatchNorm2d if features == (4, 3, 3) else nn.BatchNorm1d)
    assert (batch_norm.num_features, batch_norm.momentum, batch_norm.affine) == (12, 0.3, False)
    assert (maxout.k, maxout.features) == (3, 4)


@pytest.mark.parametrize("features", [(4, 3), (4, 3, 3, 3), ()])
def test_batch_norm_refuses_other_shapes(features):
    with pytest.raises(ValueError, match="features"):
        unit("relu").with_batch_norm(features)


@pytest.mark.parametrize("name", OURS)
def test_splash_is_fused_with_batch_norm_unless_each_neuron_has_its_own(name):
    sample = (4, 3, 3)
    plain, fused = unit(name)(sample), unit(name).with_batch_norm(sample)
    assert isinstance(fused, BatchNormSplash)
    assert (fused.constraint, fused.grad_scale) == (plain.constraint, plain.grad_scale)
    assert fused.a_pos.requires_grad == plain.a_pos.requires_grad
    channelwise = unit(name, share="channel").with_batch_norm(sample, momentum=0.3)
    assert isinstance(channelwise, BatchNormSplash)
    assert (channelwise.momentum, channelwise.features) == (0.3, (4,))
    assert isinstance(unit(name, share="unit").with_batch_norm(sample), nn.Sequential)


# The record.


def test_a_unit_is_a_value():
    assert unit("maxout", k=6) == unit("maxout", k=6)
    assert unit("maxout", k=6) != unit("maxout", k=5)
    assert unit("apl", num_hinges=3, learned=True) == unit("apl", learned=True, num_hinges=3)
    assert len({unit("splash", hinges=[0, 0.5]), unit("splash", hinges=(0, 0.5))}) == 1
    with pytest.raises(AttributeError):
        unit("relu").name = "elu"
    kind = unit("maxout", k=6)
    kind.options["k"] = 7
    assert kind.options == {"k": 6}
    assert repr(kind) == "unit('maxout', k=6)"


@pytest.mark.parametrize("name", names())
def test_a_unit_can_be_sent_and_copied(name):
    kind = unit(name)
    sent = pickle.loads(pickle.dumps(kind))
    assert sent == kind == copy.deepcopy(kind)
    assert type(sent(2)) is type(kind(2))


def test_lists_arrays_and_tensors_are_taken_as_numbers():
    for hinges in ([0, 1.5], np.array([0, 1.5]), torch.tensor([0, 1.5])):
        kind = unit("splash", num_hinges=3, hinges=hinges)
        assert kind.options["hinges"] == (0, 1.5)
        assert kind(1).hinges.tolist() == [0, 1.5]


def test_naming_a_unit_draws_no_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    unit("apl", learned=True)
    unit("splash", init="random")
    assert torch.rand(1) == expected


# Errors.


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("rely", "relu"),
        ("max_out", "maxout"),
        ("Splash", "splash"),
        ("splashpositive", "splash_positive"),
    ],
)
def test_an_unknown_name_lists_all_the_nearest_first(wrong, nearest):
    with pytest.raises(ValueError, match="unknown unit") as caught:
        unit(wrong)
    listed = str(caught.value).removeprefix(f"unknown unit '{wrong}'; there is ").split(", ")
    assert listed[0] == nearest
    assert sorted(listed) == sorted(names())


@pytest.mark.parametrize(
    ("name", "options", "error", "said"),
    [
        ("relu", {"slope": 1}, TypeError, "unit 'relu' has no option 'slope'; it has none"),
        ("maxout", {"pieces": 3}, TypeError, "no option 'pieces'; its options are k"),
        ("splash", {"features": 3}, TypeError, "no option 'features'"),
        ("splash_fixed", {"trainable": True}, TypeError, "no option 'trainable'"),
        ("splash_positive", {"constraint": None}, TypeError, "no option 'constraint'"),
        ("maxout", {"k": 0}, ValueError, "unit 'maxout': k must be at least 1"),
        ("maxout", {"k": 2.5}, TypeError, "k must be a whole number"),
        ("leaky_relu", {"negative_slope": "0.1"}, TypeError, "negative_slope"),
        ("elu", {"alpha": float("nan")}, ValueError, "alpha must be finite"),
        ("prelu", {"init": None}, TypeError, "init"),
        ("swish", {"beta": -1}, ValueError, "beta must be positive"),
        ("swish", {"learned": "yes"}, TypeError, "learned"),
        ("apl", {"share": "row"}, ValueError, "'row'"),
        ("apl", {"num_hinges": 2, "hinges": [1]}, ValueError, "num_hinges = 2"),
        ("srelu", {"t_right": -1}, ValueError, "t_right"),
        ("splash", {"num_hinges": 4}, ValueError, "num_hinges must be odd"),
        ("splash", {"init": "round"}, ValueError, "'round'"),
        ("splash", {"share": "channel", "hinges": [1, 2]}, ValueError, "hinge"),
    ],
)
def test_wrong_options_are_refused_where_the_unit_is_named(name, options, error, said):
    with pytest.raises(error, match=said):
        unit(name, **options)


@pytest.mark.parametrize("features", [0, -3, (), (4, 0), (2.5,), True, (4, True)])
def test_features_are_positive_whole_numbers(features):
    with pytest.raises(ValueError, match="features"):
        unit("relu")(features)


# One's own.


class Power(nn.Module):
    def __init__(self, features: int, power: float) -> None:
        super().__init__()
        self.features, self.power = features, power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.abs() ** self.power


def build_power(features, dim, *, power, note=""):
    return Power(channels(features, dim), power)


def test_a_unit_of_ones_own_has_all_that_ours_have(own_names):
    register("power", build_power)
    assert names()[-1] == "power"
    kind = unit("power", power=2)
    assert kind.inputs_per_output == 1
    assert kind((3, 2, 2)).features == 3
    assert kind(3)(torch.tensor([[-3.0]])).item() == 9
    assert [type(m) for m in kind.with_batch_norm(3)] == [nn.BatchNorm1d, Power]


def test_options_of_ones_own_are_checked_against_its_function(own_names):
    register("power", build_power)
    with pytest.raises(TypeError, match="no option 'pow'; its options are power, note"):
        unit("power", pow=2)
    with pytest.raises(TypeError, match="needs a value for option 'power'"):
        unit("power")
    register("anything", lambda features, dim, **options: nn.Identity())
    assert unit("anything", goes=1).options == {"goes": 1}


def test_inputs_per_output_may_depend_on_the_options(own_names):
    register("pairs", lambda features, dim: nn.GLU(dim), inputs_per_output=2)
    assert unit("pairs").inputs_per_output == 2
    assert unit("pairs")(4)(numbers(3, 8)).shape == (3, 4)
    register("groups", lambda features, dim, n=3: Maxout(n), inputs_per_output=lambda n=3: n)
    assert (unit("groups").inputs_per_output, unit("groups", n=5).inputs_per_output) == (3, 5)
    with pytest.raises(ValueError, match="inputs_per_output"):
        unit("groups", n=0)


def test_ones_own_fused_batch_norm_may_decline(own_names):
    def fused(features, batch_norm_options, *, fuse=True):
        return nn.BatchNorm1d(features[0], **batch_norm_options) if fuse else None

    register("norm", lambda features, dim, fuse=True: nn.Identity(), with_batch_norm=fused)
    module = unit("norm").with_batch_norm(5, eps=0.5)
    assert (type(module), module.num_features, module.eps) == (nn.BatchNorm1d, 5, 0.5)
    assert isinstance(unit("norm", fuse=False).with_batch_norm(5), nn.Sequential)


def test_a_taken_name_is_refused_unless_it_is_to_be_replaced(own_names):
    with pytest.raises(ValueError, match=r"already is a unit 'relu'.*maxout"):
        register("relu", build_power)
    assert isinstance(unit("relu")(1), nn.ReLU)
    register("relu", lambda features, dim: nn.ReLU6(), replace=True)
    assert isinstance(unit("relu")(1), nn.ReLU6)


def test_a_unit_that_was_sent_where_nobody_registered_it_says_so(own_names, monkeypatch):
    register("power", build_power)
    kind = unit("power", power=2)
    monkeypatch.delitem(catalogue._entries, "power")
    with pytest.raises(ValueError, match="unknown unit 'power'"):
        kind(3)


@pytest.mark.parametrize("name", ["", "my unit", "2nd", None])
def test_a_name_must_be_a_word(name):
    with pytest.raises(ValueError, match="name"):
        register(name, build_power)


@pytest.mark.parametrize("build", [nn.ReLU(), "relu"], ids=str)
def test_what_builds_must_be_a_function_and_no_module_that_all_layers_would_share(build):
    with pytest.raises(TypeError, match="build must be a function"):
        register("thing", build)
