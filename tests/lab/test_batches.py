"""Batches of a resident data set."""

import pytest
import torch

from splash_units.catalogue import unit
from splash_units.lab import data, models

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def resident(count: int, channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (count, 8, 8, channels)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return images.permute(0, 3, 1, 2), torch.arange(count)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("order", [None, torch.tensor([4, 9, 0, 2, 2, 7, 1])])
@pytest.mark.parametrize("channels_last", [True, False])
def test_batches_follow_the_order_and_keep_the_last(order, channels, channels_last):
    images, labels = resident(10, channels)
    got = list(data.batches(images, labels, 4, order=order, channels_last=channels_last))
    indices = torch.arange(10) if order is None else order
    assert [len(y) for _, y in got] == ([4, 4, 2] if order is None else [4, 3])
    assert torch.equal(torch.cat([y for _, y in got]), indices)
    assert torch.equal(torch.cat([x for x, _ in got]), images[indices].float() / 255)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert all(x.is_contiguous(memory_format=layout) for x, _ in got)


def test_an_order_may_have_gaps_in_memory_and_may_be_empty():
    images, labels = resident(10)
    ((x, y),) = data.batches(images, labels, 8, order=torch.arange(10)[::2])
    assert y.tolist() == [0, 2, 4, 6, 8]
    assert torch.equal(x, images[::2].float() / 255)
    assert list(data.batches(images, labels, 8, order=torch.arange(0))) == []


@pytest.mark.parametrize("augment", list(data.AUGMENTATIONS))
def test_another_memory_layout_gives_the_same_batches(augment):
    images, labels = resident(10)

    def made(images: torch.Tensor, channels_last: bool) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        options = {"augment": augment, "generator": generator, "fill": MEAN}
        batches = data.batches(images, labels, 4, channels_last=channels_last, **options)
        return torch.cat([x for x, _ in batches])

    expected = made(images, True)
    assert torch.equal(made(images.contiguous(), True), expected)
    assert torch.equal(made(images, False), expected)
    assert torch.equal(made(images.contiguous(), False), expected)


def test_what_moves_in_is_zero_after_the_network_s_standardisation():
    images = torch.full((64, 3, 8, 8), 255, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    batch, _ = next(
        data.batches(
            images, torch.zeros(64, dtype=torch.int64), 64, augment="moderate", generator=generator,
            fill=MEAN,
        )
    )  # fmt: skip
    network = models.build("mlp", unit("relu"), mean=MEAN, std=STD, image_size=(8, 8))
    standardised = network.input(batch)
    came_in = batch[:, 0] != 1
    assert came_in.any()
    assert standardised.permute(0, 2, 3, 1)[came_in].eq(0).all(), "exactly, in every channel"


def test_augmentation_of_a_batch_depends_on_the_generator_alone():
    images, labels = resident(10)

    def run(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        made = data.batches(images, labels, 4, augment="moderate", generator=generator, fill=MEAN)
        return [x for x, _ in made]

    assert all(torch.equal(a, b) for a, b in zip(run(0), run(0), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(run(0), run(1), strict=True))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"images": torch.zeros(10, 3, 8, 8)}, "uint8.*float32"),
        ({"images": torch.zeros(10, 8, 8, dtype=torch.uint8)}, r"\(10, 8, 8\)"),
        ({"labels": torch.zeros(9)}, "10 images but 9 labels"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"order": torch.zeros(3)}, "order must be int64"),
        ({"order": torch.tensor([3, 10])}, "indices of 10 images, got 3 to 10"),
        ({"order": torch.tensor([-1, 2])}, "indices of 10 images, got -1 to 2"),
        ({"augment": "modrate"}, "none, moderate, heavy.*did you mean 'moderate'"),
        ({"augment": "moderate"}, "needs fill"),
        ({"augment": "heavy", "fill": (0.5,)}, "each of 3 channels"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_batch(changed, message):
    images, labels = resident(10)
    arguments = {"images": images, "labels": labels, "batch_size": 4, **changed}
    with pytest.raises(ValueError, match=message):
        data.batches(**arguments)
