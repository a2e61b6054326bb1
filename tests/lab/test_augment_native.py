"""Augmentation in C++ against the torch operations, which are tested against slow references."""

import pytest
import torch
from torch import Tensor

from splash_units.lab.data import augment, native

FILL = torch.tensor([0.4914, 0.4822, 0.4465])
SHAPES = [(32, 32), (7, 9), (4, 3), (1, 1)]


@pytest.fixture
def kernels() -> native.Kernels:
    loaded = native.load()
    if loaded is None:
        pytest.skip("the C++ augmentation can't be built here")
    return loaded


def random_batch(height: int, width: int, channels: int, planes: bool) -> Tensor:
    """(B, P, H, W, K), in either layout the same images."""
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(
        0, 256, (40, height, width, channels), dtype=torch.uint8, generator=generator
    )
    return (pixels.movedim(3, 1).unsqueeze(4) if planes else pixels.unsqueeze(1)).contiguous()


@pytest.mark.parametrize("planes", [True, False])
@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_flips_and_shifts_have_the_same_bits(kernels, height, width, channels, planes):
    pixels = random_batch(height, width, channels, planes)
    generator = torch.Generator().manual_seed(2)
    flipped = torch.rand(40, generator=generator) < 0.5
    down, right = torch.randint(-5, 6, (2, 40), generator=generator)
    fill = torch.linspace(0.1, 0.7, channels)
    around = fill.view(pixels.shape[1], 1, 1, pixels.shape[4])
    canvas = augment.filled_canvas(around, pixels.shape, margin=5)
    expected = augment.flip_and_shift(pixels, flipped, down, right, canvas)
    assert torch.equal(kernels.flip_and_shift(pixels, flipped, down, right, fill), expected)


def made(name: str, pixels: Tensor, seed: int = 0) -> Tensor:
    fill = FILL[: pixels.shape[1] * pixels.shape[4]].contiguous()
    augmentation = augment.AUGMENTATIONS[name](fill, pixels.shape)
    return augmentation(pixels, torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("planes", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_heavy_is_that_of_torch_but_for_rounding(monkeypatch, height, width, channels, planes):
    pixels = random_batch(height, width, channels, planes)
    ours = made("heavy", pixels)
    monkeypatch.setenv("SPLASH_KERNEL", "reference")
    theirs = made("heavy", pixels)
    assert not torch.equal(ours, theirs) or height == 1, "it was not the other one that served"
    # Positions are float32, good to about 1e-6 of the image, and a pixel's neighbour may be 1 away.
    assert (ours - theirs).abs().max() < 1e-5


@pytest.mark.usefixtures("kernels")
def test_heavy_cuts_colours_and_shows_the_fill(monkeypatch):
    white = torch.full((64, 1, 12, 12, 3), 255, dtype=torch.uint8)
    ours = made("heavy", white)
    monkeypatch.setenv("SPLASH_KERNEL", "reference")
    theirs = made("heavy", white)
    assert ours.max() == 1
    shows_fill = (theirs - FILL).abs().amax(4) < 1e-6
    assert shows_fill.any()
    assert (ours[shows_fill] == FILL).all(), "exactly, so that it is zero once standardised"


@pytest.mark.parametrize("forced", ["native", "reference"])
@pytest.mark.parametrize("planes", [True, False])
@pytest.mark.parametrize("name", list(augment.AUGMENTATIONS))
def test_images_are_chosen_as_if_they_were_copied_first(monkeypatch, name, planes, forced):
    monkeypatch.setenv("SPLASH_KERNEL", forced)
    pixels = random_batch(6, 5, 3, planes)
    chosen = torch.tensor([39, 0, 7, 7, 12])
    augmentation = augment.AUGMENTATIONS[name](FILL, pixels[:5].shape)
    ours = augmentation(pixels, torch.Generator().manual_seed(0), chosen)
    copied = pixels.index_select(0, chosen)
    assert torch.equal(ours, augmentation(copied, torch.Generator().manual_seed(0)))


def test_bytes_become_the_floats_of_a_division(kernels):
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16, 1)
    assert torch.equal(kernels.convert(pixels), pixels.float() / 255)


@pytest.mark.parametrize("forced", ["native", "reference"])
@pytest.mark.parametrize("name", list(augment.AUGMENTATIONS))
def test_the_number_of_threads_changes_no_bit(monkeypatch, name, forced):
    monkeypatch.setenv("SPLASH_KERNEL", forced)
    pixels = random_batch(32, 32, 3, planes=True)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(made(name, pixels))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_images_of_two_channels_have_no_colours(kernels):
    pixels = random_batch(4, 4, 2, planes=True)
    zeros = torch.zeros(4, 40)
    with pytest.raises(ValueError, match=r"1 or 3 channels.*\(40, 2, 4, 4, 1\)"):
        kernels.warp_and_recolour(
            pixels, zeros[0] > 0, zeros, zeros, FILL[:2], torch.zeros(2, 2), FILL[:2]
        )


@pytest.mark.parametrize("trouble", ["no compiler", "failed build", "no folder"])
def test_torch_serves_where_it_can_t_be_built(trouble, monkeypatch, tmp_path):
    monkeypatch.setenv("SPLASH_CACHE", str(tmp_path / "cache"))
    if trouble == "no compiler":
        monkeypatch.setenv("CXX", "nothing-like-it")
    elif trouble == "failed build":
        (tmp_path / "fails.sh").write_text('[ "$1" = --version ]')
        monkeypatch.setenv("CXX", f"sh {tmp_path / 'fails.sh'}")
    else:
        (tmp_path / "cache").touch()
    native._attempt.cache_clear()
    try:
        assert native.load() is None
        pixels = random_batch(8, 8, 3, planes=False)
        ours = made("moderate", pixels)
    finally:
        native._attempt.cache_clear()
    monkeypatch.undo()
    assert torch.equal(ours, made("moderate", pixels))


def test_it_is_built_once_and_says_nothing(kernels, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("SPLASH_CACHE", str(tmp_path))
    native._attempt.cache_clear()
    try:
        assert native.load() is native.load()
        assert len(list(tmp_path.glob("*.so"))) == 1
    finally:
        native._attempt.cache_clear()
    assert capfd.readouterr() == ("", "")
