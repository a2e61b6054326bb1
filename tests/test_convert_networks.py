"""`convert` on networks as others wrote them: timm's, and a transformers ResNet.

Random weights and small inputs: what is asked is whether every activation is found and the network
still computes the same, not how good it is.
"""

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import nn

from splash_units import BatchNormSplash, Splash
from splash_units.convert import FITTED, convert, fold, fuse, parameter_groups

SMALL = {"num_classes": 5}


@pytest.fixture(scope="module")
def timm() -> Iterator[ModuleType]:
    """timm, which imports torchvision, whose operators are not built for a CPU build of torch.

    torchvision only needs them to be declared to be imported; none is called here. Where they are
    built, to declare them twice would end the process.
    """
    declared = torch.library.Library("torchvision", "FRAGMENT")
    if torch.version.cuda is None:
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    yield pytest.importorskip("timm")
    del declared  # which would undo the declarations, had it not lived until here


def images(count: int = 2, side: int = 32) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def normalised(model: nn.Module, given: torch.Tensor | None = None) -> nn.Module:
    """The model with statistics of the images `given`, so that signals neither die nor blow up.

    Of two small ones, deep layers have two values a channel, which are too few for that.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None
            module.reset_running_stats()
    with torch.no_grad():
        model.train()(images() if given is None else given)
    return model.eval()


def units_of(model: nn.Module) -> list[Splash]:
    return [module for module in model.modules() if isinstance(module, Splash)]


@pytest.mark.parametrize(
    ("name", "count"),
    [("resnet18", 17), ("vgg11_bn", 10), ("densenet121", 121)],
)
def test_timm_networks_with_relu_stay_bit_equal(timm: ModuleType, name: str, count: int) -> None:
    torch.manual_seed(0)
    model = normalised(timm.create_model(name, **SMALL))
    network, report = convert(model, return_report=True, example_inputs=images())
    assert len(report.changed) == len(units_of(network)) == count
    assert not report.left
    assert {c.largest_error for c in report.changed} == {0.0}
    assert report.output_difference == 0.0
    assert type(network) is type(model)
    with torch.no_grad():
        assert torch.equal(network(images()), model(images()))
        assert torch.equal(network.forward_features(images()), model.forward_features(images()))


def test_timm_mobilenet_with_relu6_is_exact_up_to_rounding(timm: ModuleType) -> None:
    torch.manual_seed(0)
    model = normalised(timm.create_model("mobilenetv2_100", **SMALL))
    network, report = convert(model, return_report=True, example_inputs=images())
    assert len(units_of(network)) == 35
    assert not report.left
    assert {c.exactness for c in report.changed} == {"exact"}
    with torch.no_grad():
        torch.testing.assert_close(network(images()), model(images()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "count", "largest_error"),
    [("efficientnet_b0", 49, 0.024), ("convnext_atto", 12, 0.017)],
)
def test_timm_networks_with_smooth_units_are_fitted(
    timm: ModuleType, name: str, count: int, largest_error: float
) -> None:
    torch.manual_seed(0)
    given = images(count=8, side=64)
    model = normalised(timm.create_model(name, **SMALL), given)
    with pytest.raises(ValueError, match="no activation among ReLU"):
        convert(model)
    network, report = convert(model, from_=FITTED, return_report=True, example_inputs=given)
    assert len(units_of(network)) == count
    assert not report.left
    assert 0.01 < report.largest_error < largest_error
    finer, finer_report = convert(
        model, from_=FITTED, num_hinges=15, return_report=True, example_inputs=given
    )
    assert len(units_of(finer)) == count
    # Better fits give outputs nearer to the network's own.
    assert finer_report.largest_error < report.largest_error
    assert finer_report.output_difference < report.output_difference


def test_a_converted_timm_network_learns(timm: ModuleType) -> None:
    torch.manual_seed(0)
    network = convert(timm.create_model("resnet18", zero_init_last=False, **SMALL))
    optimizer = torch.optim.SGD(parameter_groups(network, 5e-4), lr=0.005)
    labels = torch.tensor([1, 3])
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network.train()(images()), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    start = Splash()
    assert all(not torch.equal(unit.a_pos, start.a_pos) for unit in units_of(network))


@pytest.mark.parametrize(("name", "count"), [("resnet18", 9), ("vgg11_bn", 8)])
def test_timm_networks_fuse(timm: ModuleType, name: str, count: int) -> None:
    """All but the units behind a residual addition, and those of layers without batch norm."""
    torch.manual_seed(0)
    network = convert(normalised(timm.create_model(name, **SMALL)))
    fused = fuse(network)
    assert sum(isinstance(module, BatchNormSplash) for module in fused.modules()) == count
    with torch.no_grad():
        torch.testing.assert_close(fused(images()), network(images()), rtol=1e-3, atol=1e-4)


def test_a_transformers_resnet_stays_bit_equal() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="bottleneck", num_labels=3
    )
    model = transformers.ResNetForImageClassification(config).eval()
    inputs = {"pixel_values": images()}
    network, report = convert(model, return_report=True, example_inputs=inputs)
    relus = sum(isinstance(module, nn.ReLU) for module in model.modules())
    assert len(report.changed) == len(units_of(network)) == relus == 10
    assert not report.left
    assert report.output_difference == 0.0
    assert type(network) is type(model)
    with torch.no_grad():
        assert torch.equal(network(**inputs).logits, model(**inputs).logits)
        assert torch.equal(fold(network)(**inputs).logits, model(**inputs).logits)
