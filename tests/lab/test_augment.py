"""Augmentation of whole batches against slow references, one image and one pixel at a time."""

import math

import pytest
import torch
from torch import Tensor

from splash_units.lab.data import augment

FILL = torch.tensor([0.4914, 0.4822, 0.4465])


def random_pixels(count: int, height: int, width: int, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(
        0, 256, (count, height, width, channels), dtype=torch.uint8, generator=generator
    )


def slow_flip_and_shift(
    image: Tensor, flipped: bool, down: int, right: int, fill: Tensor
) -> Tensor:
    height, width, _ = image.shape
    result = fill.expand(image.shape).clone()
    for y in range(height):
        for x in range(width):
            source_y, source_x = y - down, x - right
            if 0 <= source_y < height and 0 <= source_x < width:
                source_x = width - 1 - source_x if flipped else source_x
                result[y, x] = image[source_y, source_x].float() / 255
    return result


def flip_and_shift(pixels, flipped, down, right, fill, planes, margin):
    """Of (B, H, W, C), through either layout of a batch."""
    batch = pixels.movedim(3, 1).unsqueeze(4) if planes else pixels.unsqueeze(1)
    batch = batch.contiguous()
    filling = fill.view(-1, 1, 1, 1) if planes else fill.view(1, 1, 1, -1)
    canvas = augment.filled_canvas(filling, batch.shape, margin)
    result = augment.flip_and_shift(batch, flipped, down, right, canvas)
    return result.squeeze(4).movedim(1, 3) if planes else result.squeeze(1)


@pytest.mark.parametrize("planes", [True, False])
@pytest.mark.parametrize(("height", "width", "channels"), [(7, 9, 3), (8, 8, 1), (4, 3, 3)])
def test_flips_and_shifts_are_those_of_the_reference(height, width, channels, planes):
    generator = torch.Generator().manual_seed(2)
    pixels = random_pixels(40, height, width, channels)
    flipped = torch.rand(40, generator=generator) < 0.5
    down, right = torch.randint(-5, 6, (2, 40), generator=generator)
    fill = FILL[:channels]
    result = flip_and_shift(pixels, flipped, down, right, fill, planes, margin=5)
    for i in range(40):
        slow = slow_flip_and_shift(pixels[i], bool(flipped[i]), int(down[i]), int(right[i]), fill)
        assert torch.equal(result[i], slow)


@pytest.mark.parametrize("flip", [True, False])
def test_all_or_none_may_be_flipped(flip):
    pixels = random_pixels(3, 5, 5)
    still = torch.zeros(3, dtype=torch.int64)
    all_or_none = torch.full((3,), flip)
    result = flip_and_shift(pixels, all_or_none, still, still, FILL, planes=False, margin=2)
    assert torch.equal(result, (pixels.flip(2) if flip else pixels) / 255)


@pytest.mark.parametrize("name", ["moderate", "heavy"])
def test_a_smaller_last_batch_uses_the_same_canvas(name):
    pixels = random_pixels(8, 6, 6).unsqueeze(1)
    make = augment.AUGMENTATIONS[name]
    augmentation = make(FILL, pixels.shape)
    augmentation(pixels, torch.Generator().manual_seed(0))
    after = augmentation(pixels[:3], torch.Generator().manual_seed(5))
    fresh = make(FILL, pixels[:3].shape)(pixels[:3], torch.Generator().manual_seed(5))
    assert torch.equal(after, fresh)


def test_moderate_draws_every_shift_and_each_axis_and_image_alone():
    count = 4000
    # One bright pixel in the middle tells where an image went; a brighter one beside it, which way.
    pixels = torch.zeros(count, 1, 21, 21, 1, dtype=torch.uint8)
    pixels[:, :, 10, 10], pixels[:, :, 10, 11] = 100, 200
    moved = augment.moderate(torch.zeros(1), pixels.shape)(pixels, torch.Generator().manual_seed(0))
    at = moved.view(count, -1).mul(255).round().eq(100).nonzero()[:, 1]
    brighter = moved.view(count, -1).mul(255).round().eq(200).nonzero()[:, 1]
    flipped = brighter < at
    down, right = at // 21 - 10, at % 21 - 10
    assert 0.47 < flipped.float().mean() < 0.53
    for shift in (down, right):
        counts = torch.bincount(shift + 5, minlength=11)
        assert len(counts) == 11
        assert counts.min() > 0.8 * count / 11
        assert counts.max() < 1.2 * count / 11
    drawn = torch.stack([down.float(), right.float(), flipped.float()])
    correlation = torch.corrcoef(drawn) - torch.eye(3)
    assert correlation.abs().max() < 0.05


def slow_warp(
    image: Tensor,
    flipped: bool,
    angle: float,
    scale: float,
    down: float,
    right: float,
    fill: Tensor,
) -> Tensor:
    """Forward as a user would say it (flip, turn, scale, move), inverted pixel by pixel."""
    channels, height, width = image.shape
    centre_y, centre_x = (height - 1) / 2, (width - 1) / 2
    result = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            moved_y, moved_x = y - centre_y - down, x - centre_x - right
            turned_x, turned_y = moved_x / scale, moved_y / scale
            source_x = math.cos(-angle) * turned_x - math.sin(-angle) * turned_y
            source_y = math.sin(-angle) * turned_x + math.cos(-angle) * turned_y
            source_x = (-source_x if flipped else source_x) + centre_x
            source_y += centre_y
            for c in range(channels):
                result[c, y, x] = slow_bilinear(image[c], source_y, source_x, float(fill[c]))
    return result


def slow_bilinear(plane: Tensor, y: float, x: float, fill: float) -> float:
    total = 0.0
    for near_y in (math.floor(y), math.floor(y) + 1):
        for near_x in (math.floor(x), math.floor(x) + 1):
            inside = 0 <= near_y < plane.shape[0] and 0 <= near_x < plane.shape[1]
            value = float(plane[near_y, near_x]) if inside else fill
            total += (1 - abs(y - near_y)) * (1 - abs(x - near_x)) * value
    return total


def test_warps_are_those_of_the_reference():
    images = random_pixels(6, 9, 7).permute(0, 3, 1, 2).double() / 255
    generator = torch.Generator().manual_seed(3)
    angle, scale, down, right = torch.rand(4, 6, dtype=torch.float64, generator=generator)
    angle, scale, down, right = angle - 0.5, scale + 0.6, 6 * down - 3, 6 * right - 3
    flipped = torch.tensor([True, False] * 3)
    fill = FILL.double()
    framed = fill.view(3, 1, 1).repeat(6, 1, 11, 9)
    framed[:, :, 1:-1, 1:-1] = images
    result = augment.warp(framed, flipped, angle, scale, down, right, torch.empty(6, 2, 9, 7))
    for i in range(6):
        slow = slow_warp(
            images[i], bool(flipped[i]), float(angle[i]), float(scale[i]), float(down[i]),
            float(right[i]), fill,
        )  # fmt: skip
        # The sampling grid is float32: pixel positions are good to about 1e-6 of the image.
        assert (result[i] - slow).abs().max() < 1e-5


def slow_recolour(
    image: Tensor, brightness: float, contrast: float, saturation: float, hue: float
) -> Tensor:
    """Step by step and pixel by pixel, with the YIQ of the standard library's textbook formulas."""
    image = image * brightness
    mean_luma = sum(luma(*pixel) for pixel in image.flatten(1).T.tolist()) / image[0].numel()
    image = mean_luma + contrast * (image - mean_luma)
    result = torch.empty_like(image)
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            pixel = image[:, y, x]
            grey = luma(*pixel.tolist())
            result[:, y, x] = turn_chroma(grey + saturation * (pixel - grey), hue)
    return result


def luma(red: float, green: float, blue: float) -> float:
    return 0.299 * red + 0.587 * green + 0.114 * blue


def turn_chroma(pixel: Tensor, hue: float) -> Tensor:
    to_yiq = torch.tensor(
        [[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]],
        dtype=torch.float64,
    )
    y, i, q = (to_yiq @ pixel).tolist()
    i, q = math.cos(hue) * i - math.sin(hue) * q, math.sin(hue) * i + math.cos(hue) * q
    return torch.linalg.solve(to_yiq, torch.tensor([y, i, q], dtype=torch.float64))


def test_colours_are_those_of_the_reference():
    images = random_pixels(5, 4, 6).permute(0, 3, 1, 2).double() / 255
    generator = torch.Generator().manual_seed(4)
    brightness, contrast, saturation, hue = torch.rand(
        4, 5, dtype=torch.float64, generator=generator
    )
    knobs = (brightness + 0.5, contrast + 0.5, saturation + 0.5, 2 * hue - 1)
    result = augment.recolour(images, *knobs)
    for i in range(5):
        slow = slow_recolour(images[i], *(float(knob[i]) for knob in knobs))
        # The YIQ matrices are float32.
        assert (result[i] - slow).abs().max() < 1e-6


def test_hue_keeps_luma_and_grey_and_a_full_turn_is_none():
    image = torch.tensor([0.6, 0.3, 0.3]).view(1, 3, 1, 1)
    one = torch.ones(1)
    turned = augment.recolour(image, one, one, one, 0.3 * one)
    assert (turned - image).abs().max() > 0.05
    assert luma(*turned.flatten().tolist()) == pytest.approx(luma(0.6, 0.3, 0.3), abs=1e-6)
    whole = augment.recolour(image, one, one, one, 2 * math.pi * one)
    assert torch.allclose(whole, image, atol=1e-6)
    grey = torch.full((1, 3, 2, 2), 0.3)
    assert torch.allclose(augment.recolour(grey, one, one, 2 * one, one), grey, atol=1e-6)


def test_grey_images_keep_to_brightness_and_contrast():
    images = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    knobs = torch.tensor([0.9, 1.1]), torch.tensor([1.2, 0.8])
    result = augment.recolour(images, *knobs, torch.full((2,), 3.0), torch.full((2,), 3.0))
    for i in range(2):
        bright = images[i] * knobs[0][i]
        expected = bright.mean() + knobs[1][i] * (bright - bright.mean())
        assert torch.allclose(result[i], expected, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_heavy_stays_within_its_ranges(channels):
    """Corners of what is allowed: nothing leaves [0, 1], and a constant image shows its fill."""
    pixels = torch.full((500, 1, 16, 16, channels), 128, dtype=torch.uint8)
    fill = torch.zeros(channels)
    result = augment.heavy(fill, pixels.shape)(pixels, torch.Generator().manual_seed(0))
    assert result.shape == pixels.shape
    result = result.squeeze(1)
    assert result.min() >= 0
    assert result.max() <= 1
    # The centre of a constant image keeps its colour: brightness alone changes it, by at most 20 %.
    factors = result[:, 7:9, 7:9].mean((1, 2, 3)) * 255 / 128
    assert 0.8 < factors.min() < 0.82
    assert 1.18 < factors.max() < 1.2
    # With 5 pixels of shift and a scale of 0.8 a corner may show the fill.
    assert result[:, 0, 0].eq(0).all(1).any()


@pytest.mark.parametrize("name", list(augment.AUGMENTATIONS))
def test_a_seed_fixes_everything_and_nothing_else_matters(name):
    pixels = random_pixels(6, 8, 8).unsqueeze(1)
    augmentation = augment.AUGMENTATIONS[name](FILL, pixels.shape)
    before, state = pixels.clone(), torch.get_rng_state()
    one = augmentation(pixels, torch.Generator().manual_seed(7))
    torch.rand(3)
    torch.set_rng_state(state)
    two = augmentation(pixels, torch.Generator().manual_seed(7))
    three = augmentation(pixels, torch.Generator().manual_seed(8))
    assert torch.equal(one, two)
    assert torch.equal(one, three) == (name == "none")
    assert torch.equal(pixels, before), "the resident pixels are left alone"
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
