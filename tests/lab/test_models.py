"""The five networks: sizes, shapes, starts, and every unit in every one."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from splash_units import catalogue
from splash_units.catalogue import unit
from splash_units.lab import models

GREY = {"in_channels": 1, "mean": (0.1307,), "std": (0.3081,)}
COLOUR = {"in_channels": 3, "mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
RELU = unit("relu")


def build(name, activation=RELU, **options):
    return models.build(name, activation, **{**COLOUR, **options})


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("mlp", GREY, 220_522),
        ("mlp", {**GREY, "batch_norm": False}, 219_818),
        ("mlp", {**GREY, "bias": False}, 220_170),
        ("lenet5", {}, 62_458),
        ("lenet5", {"batch_norm": False}, 62_006),
        ("lenet5", GREY, 62_158),
        ("lenet5", {**GREY, "batch_norm": False}, 61_706),
        ("lenet5", {**GREY, "pad_to": 28}, 44_878),
        ("lenet5", {**GREY, "pad_to": 28, "batch_norm": False}, 44_426),
        ("nin", {}, 969_822),
        ("nin", {"batch_norm": False}, 966_986),
        ("nin", {"num_classes": 100}, 987_372),
        ("nin", {"num_classes": 100, "batch_norm": False}, 984_356),
        ("allcnn", {}, 1_372_234),
        ("allcnn", {"batch_norm": False}, 1_369_738),
        ("allcnn", {"num_classes": 100}, 1_389_604),
        ("allcnn", {"num_classes": 100, "batch_norm": False}, 1_387_108),
        ("resnet20", {}, 273_066),
        ("resnet20", {"bias": False}, 272_282),
        ("resnet20", {"num_classes": 100}, 278_916),
        ("resnet20", {"num_classes": 100, "bias": False}, 278_132),
        ("resnet20", {"preactivation": True}, 273_066),
        ("resnet20", {"preactivation": True, "num_classes": 100}, 278_916),
    ],
)
def test_parameter_counts_are_the_known_ones(name, options, expected):
    assert count(build(name, **options)) == expected


@pytest.mark.parametrize(
    ("name", "options", "additional"),
    [
        ("mlp", GREY, 24),
        ("lenet5", {}, 32),
        ("nin", {}, 72),
        ("allcnn", {}, 64),
        ("resnet20", {}, 152),
        ("resnet20", {"preactivation": True}, 152),
    ],
)
def test_splash_adds_eight_parameters_a_layer(name, options, additional):
    assert (
        count(build(name, unit("splash"), **options)) - count(build(name, **options)) == additional
    )


@pytest.mark.parametrize(("name", "options", "units"), [("mlp", GREY, 352), ("lenet5", {}, 6_508)])
@pytest.mark.parametrize("hinges", [3, 7, 11])
def test_independent_units_add_eight_parameters_each(name, options, units, hinges):
    independent = unit("splash", share="unit", num_hinges=hinges)
    additional = count(build(name, independent, **options)) - count(build(name, **options))
    assert additional == units * (hinges + 1)


def test_running_statistics_of_resnet20_are_the_known_number():
    statistics = [
        buffer.numel()
        for name, buffer in build("resnet20").named_buffers()
        if name.endswith(("running_mean", "running_var"))
    ]
    assert 273_066 + sum(statistics) == 274_442


FEATURES = {"mlp": 32, "lenet5": 84, "nin": 192, "allcnn": 192, "resnet20": 64}


@pytest.mark.parametrize("name", list(FEATURES))
@pytest.mark.parametrize(("channels", "size"), [(GREY, 28), (GREY, 32), (COLOUR, 32)])
@pytest.mark.parametrize("classes", [10, 100])
def test_networks_give_logits_and_features(name, channels, size, classes):
    network = build(name, num_classes=classes, image_size=(size, size), **channels).eval()
    images = torch.rand(2, channels["in_channels"], size, size)
    with torch.no_grad():
        assert network(images).shape == (2, classes)
        assert network.features(images).shape == (2, FEATURES[name])


def test_features_are_what_the_last_linear_map_sees():
    images = torch.rand(3, 3, 32, 32)
    for name in ("mlp", "lenet5", "resnet20"):
        network = build(name).eval()
        assert torch.equal(network.head(network.features(images)), network(images))
    allcnn = build("allcnn").eval()
    weight, bias = allcnn.head.conv1.weight.flatten(1), allcnn.head.conv1.bias
    # The class scores are linear and then averaged, so the average may as well come first.
    again = nn.functional.linear(allcnn.features(images), weight, bias)
    assert torch.allclose(again, allcnn(images), atol=1e-5)


SHAPES = {
    "lenet5": [(6, 28, 28), (16, 10, 10)],
    "nin": [(192, 32, 32), (160, 32, 32), (96, 32, 32), *[(192, 16, 16)] * 3, *[(192, 8, 8)] * 2],
    "allcnn": [
        *[(96, 32, 32)] * 2, (96, 16, 16), *[(192, 16, 16)] * 2, (192, 8, 8), *[(192, 6, 6)] * 2,
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", list(SHAPES))
def test_maps_have_the_sizes_of_the_tables(name):
    network = build(name).eval()
    shapes = []
    for part, module in network.body.named_children():
        if part.startswith("unit"):
            module.register_forward_hook(lambda _m, _i, y: shapes.append(tuple(y.shape[1:])))
    network(torch.rand(1, 3, 32, 32))
    assert shapes[: len(SHAPES[name])] == SHAPES[name]


def test_standardisation_is_part_of_the_network():
    network = build("lenet5")
    images = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(COLOUR[key]).view(3, 1, 1) for key in ("mean", "std"))
    assert torch.allclose(network.input(images), (images - mean) / std, atol=1e-6)
    assert {"input.mean", "input.std"} <= set(network.state_dict())


def test_smaller_images_get_a_black_border():
    network = build("lenet5", **GREY)
    images = torch.rand(2, 1, 28, 28)
    padded = network.input(images) * 0.3081 + 0.1307
    assert padded.shape == (2, 1, 32, 32)
    assert torch.allclose(padded[:, :, 2:30, 2:30], images, atol=1e-6)
    padded[:, :, 2:30, 2:30] = 0
    assert padded.abs().max() < 1e-7


def test_kernels_start_from_he_s_distribution_and_biases_from_zero():
    torch.manual_seed(0)
    network = build("nin")
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fan_in = module.weight[0].numel()
            spread = module.weight.std().item() * math.sqrt(fan_in / 2)
            assert spread == pytest.approx(1, abs=4 / math.sqrt(module.weight.numel()))
            assert module.bias.eq(0).all()


@pytest.mark.parametrize(
    "activation", [unit("splash"), unit("splash", init="random"), unit("prelu")]
)
def test_one_seed_gives_one_set_of_kernels_whatever_the_unit(activation):
    def kernels(unit, seed):
        torch.manual_seed(seed)
        modules = build("resnet20", unit).modules()
        return [m.weight for m in modules if isinstance(m, nn.Conv2d | nn.Linear)]

    pairs = list(zip(kernels(RELU, 0), kernels(activation, 0), strict=True))
    assert len(pairs) == 22
    assert all(torch.equal(one, other) for one, other in pairs)
    assert not torch.equal(kernels(RELU, 0)[0], kernels(RELU, 1)[0])


@pytest.mark.parametrize(
    ("name", "normed", "bare"),
    [("mlp", 3, 0), ("lenet5", 4, 0), ("nin", 9, 0), ("allcnn", 8, 0), ("resnet20", 10, 9)],
)
def test_every_hidden_unit_has_a_batch_norm_before_it(name, normed, bare):
    """All but the units after additions in the first ResNet."""
    made = [
        module
        for module in build(name, unit("prelu")).modules()
        if isinstance(module, nn.Sequential)
        and isinstance(module[0], nn.BatchNorm1d | nn.BatchNorm2d)
    ]
    prelus = [m for m in build(name, unit("prelu")).modules() if isinstance(m, nn.PReLU)]
    assert len(made) == normed
    assert len(prelus) == normed + bare


def test_preactivation_gives_every_unit_its_batch_norm():
    network = build("resnet20", unit("prelu"), preactivation=True)
    prelus = [m for m in network.modules() if isinstance(m, nn.PReLU)]
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(prelus) == len(norms) == 19


@pytest.mark.parametrize(
    ("name", "options", "kept"),
    [
        ("relu", {}, True),
        ("splash", {}, True),
        ("tanh", {}, False),
        ("sigmoid", {}, False),
        ("tanh", {"class_unit": True}, True),
        ("relu", {"class_unit": False}, False),
    ],
)
def test_the_unit_on_nin_s_class_scores_is_kept_where_it_does_not_bound_them(name, options, kept):
    head = build("nin", unit(name), **options).head
    assert ("unit1" in dict(head.named_children())) == kept
    assert ("norm1" in dict(head.named_children())) != kept
    assert count(head) >= 192 * 10 + 10 + 20, "batch norm stays"


def test_maxout_widens_the_layer_before_it():
    network = build("lenet5", unit("maxout", k=3))
    assert network.body.conv1.out_channels == 18
    assert network.body.conv2.in_channels == 6
    assert network.body.dense1.out_features == 360
    assert network.head.in_features == 84
    assert network.head.out_features == 10


def test_a_residual_sum_of_maxout_is_the_shortcut_plus_the_largest_piece():
    block = build("resnet20", unit("maxout", k=3)).eval().body.block1
    x = torch.randn(2, 16, 32, 32)
    pieces = block.norm2(block.conv2(block.unit1(block.conv1(x)))).view(2, 3, 16, 32, 32)
    assert torch.allclose(block(x), x + pieces.amax(1), atol=1e-5)


SMALL = {"image_size": (16, 16), "pad_to": 16}
NETWORKS = [
    ("mlp", SMALL),
    ("lenet5", {}),
    ("nin", SMALL),
    ("allcnn", SMALL),
    ("resnet20", SMALL),
    ("resnet20", {"preactivation": True, **SMALL}),
]
# Nine pieces make All-CNN-C and NiN nine times larger and prove no more than two.
QUICK_OPTIONS = {"maxout": {"k": 2}}


@pytest.mark.parametrize(("network_name", "options"), NETWORKS)
@pytest.mark.parametrize("unit_name", catalogue.names())
def test_every_unit_trains_in_every_network(network_name, options, unit_name):
    torch.manual_seed(0)
    activation = unit(unit_name, **QUICK_OPTIONS.get(unit_name, {}))
    network = build(network_name, activation, **options).to(memory_format=torch.channels_last)
    images = torch.rand(2, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    labels = torch.tensor([3, 7])
    start = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(2):
        loss = nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert math.isfinite(loss.item())
    moved = {name for name, p in network.named_parameters() if not torch.equal(p, start[name])}
    # Batch norm takes out what a bias before it adds, so such a bias has no gradient to speak of.
    kernels = {name for name, p in network.named_parameters() if p.ndim > 1}
    assert kernels <= moved
    assert all(p.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build("resnet"), "'resnet'; did you mean resnet20"),
        (lambda: build("vgg"), "known are mlp, lenet5"),
        (lambda: build("lenet5", preactivation=True), "no option 'preactivation'; it has image"),
        (lambda: build("resnet20", dropout=(0.5,)), "'resnet20' has no option 'dropout'"),
        (lambda: build("nin", dropout=(0.5,)), "needs 2 dropout probabilities"),
        (lambda: build("allcnn", dropout=(0.2, 0.5, 1.0)), "0 up to 1"),
        (lambda: build("mlp", num_classes=1), "num_classes must be at least 2, got 1"),
        (lambda: build("mlp", in_channels=2), "in_channels must be 1 or 3, got 2"),
        (lambda: build("mlp", mean=(0.5,)), "each of 3 channels"),
        (lambda: build("mlp", std=(1.0, 0.0, 1.0)), "std must be positive"),
        (lambda: build("lenet5", image_size=(8, 8), pad_to=8), "too small"),
        (lambda: build("lenet5", **GREY)(torch.rand(2, 3, 32, 32)), r"N, 1, H, W.*2, 3, 32, 32"),
        (lambda: build("lenet5")(torch.rand(2, 1, 32, 32)), r"\(N, 3, H, W\)"),
        (lambda: build("mlp", **GREY)(torch.rand(2, 1, 32, 32)), "at most 28x28, got 32x32"),
        (lambda: build("lenet5")(torch.rand(3, 32, 32)), r"got \(3, 32, 32\)"),
        (lambda: build("lenet5")(torch.ones(2, 3, 32, 32).byte()), "got torch.uint8; divide"),
        (lambda: models.register("mlp", models.mlp), "'mlp' is taken"),
    ],
)  # fmt: skip
def test_wrong_combinations_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_network_of_one_s_own_is_built_by_name(monkeypatch):
    monkeypatch.setattr(models, "_builders", dict(models._builders))

    def linear(layers, *, num_classes, in_channels, image_size, factor=1):
        features = in_channels * image_size[0] * image_size[1]
        return nn.Flatten(), layers.dense(features, factor * num_classes)

    models.register("linear", linear)
    assert models.names()[-1] == "linear"
    network = build("linear", factor=2, image_size=(4, 5))
    assert network(torch.rand(2, 3, 4, 5)).shape == (2, 20)
    with pytest.raises(ValueError, match="no option 'width'; it has factor"):
        build("linear", width=3)
    with pytest.raises(TypeError, match="a builder is a function"):
        models.register("other", "linear")


def test_the_page_on_networks_runs_and_states_the_true_counts(monkeypatch):
    monkeypatch.setattr(models, "_builders", dict(models._builders))
    page = (Path(__file__).parents[2] / "docs" / "networks.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(block, names)
    assert "two_layers" in models.names()
    for name in FEATURES:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
        options = GREY if name == "mlp" else {}
        assert f" {count(build(name, **options)):,} " in row
        assert row.endswith(
            f" {count(build(name, unit('splash'), **options)) - count(build(name, **options))} |"
        )
