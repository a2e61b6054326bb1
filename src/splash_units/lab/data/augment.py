"""Augmentation of whole batches: uint8 pixels in, floats in [0, 1] out.

`moderate` is the paper's scheme read as: flip with probability 1/2, then an independent whole-pixel
shift of up to 5 along each axis of each image. `heavy` is our own definition, for the paper gives
none: flip, rotation, scale and shift with bilinear sampling, and colour jitter.

What moves in from outside an image is the channel's mean, which the networks' standardisation
turns into zero. All randomness comes from one CPU generator in a few draws per batch, so that a
seed fixes it on every device. The torch operations here define what is computed; on the CPU
`native` does it faster where it can.

Batches are (B, P, H, W, K) here: P planes of pixels that have K values side by side, which is
(C, 1) for images that are contiguous and (1, C) for those with channels last. A row lies together
in both, which makes a shift a copy, and no batch has to change its layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from . import native

MAX_SHIFT = 5  # pixels
MAX_ROTATION = math.radians(15)
MAX_RESCALING = 0.2  # a factor between 0.8 and 1.2
MAX_JITTER = 0.2  # of brightness, contrast and saturation, as factors
MAX_HUE = 0.05  # of a full turn
RANGES = torch.tensor([MAX_ROTATION, MAX_SHIFT, MAX_SHIFT, 2 * math.pi * MAX_HUE]).view(4, 1)
FACTORS = torch.tensor([MAX_RESCALING, MAX_JITTER, MAX_JITTER, MAX_JITTER]).view(4, 1)

# In YIQ a colour is its luma and two axes of chroma: saturation scales the chroma, hue turns it. As
# matrices on RGB: GREY keeps only the luma, TURN is a quarter turn of the chroma.
RGB_TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
GREY = RGB_TO_YIQ[0].expand(3, 3)
TURN = (
    torch.linalg.inv(RGB_TO_YIQ) @ torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]]) @ RGB_TO_YIQ
)


class Augmentation(Protocol):
    """Turns pixels (N, P, H, W, K), those that are `chosen` or all of them, into floats.

    It is made for one fill, a value a channel, and for batches of one shape, the last of which may
    be smaller.
    """

    def __call__(
        self, pixels: Tensor, generator: Generator | None, chosen: Tensor | None = None
    ) -> Tensor: ...


def select(pixels: Tensor, chosen: Tensor | None) -> Tensor:
    """The chosen ones, or all."""
    return pixels if chosen is None else pixels.index_select(0, chosen)


def none(fill: Tensor, shape: tuple[int, ...]) -> Augmentation:
    """Only the conversion to [0, 1]."""
    kernels = native.load() if fill.is_cpu else None

    def convert(
        pixels: Tensor, generator: Generator | None, chosen: Tensor | None = None
    ) -> Tensor:
        if kernels is not None:
            return kernels.convert(pixels, chosen)
        return select(pixels, chosen).to(torch.float32).div_(255)

    return convert


def moderate(fill: Tensor, shape: tuple[int, ...]) -> Augmentation:
    """Random flips and whole-pixel shifts."""
    _, planes, _, _, values = shape
    kernels = native.load() if fill.is_cpu else None
    if kernels is None:
        canvas = filled_canvas(fill.view(planes, 1, 1, values), shape, MAX_SHIFT)

    def augment(
        pixels: Tensor, generator: Generator | None, chosen: Tensor | None = None
    ) -> Tensor:
        count = len(pixels if chosen is None else chosen)
        flipped = torch.rand(count, generator=generator) < 0.5
        down, right = torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, (2, count), generator=generator)
        if kernels is not None:
            return kernels.flip_and_shift(pixels, flipped, down, right, fill, chosen)
        return flip_and_shift(select(pixels, chosen), flipped, down, right, canvas)

    return augment


def heavy(fill: Tensor, shape: tuple[int, ...]) -> Augmentation:
    """Random flips, rotations, scales, shifts and colours."""
    kernels = native.load() if fill.is_cpu else None
    change = _change_in_torch(fill, shape) if kernels is None else _change_by(kernels, fill)

    def augment(
        pixels: Tensor, generator: Generator | None, chosen: Tensor | None = None
    ) -> Tensor:
        count = len(pixels if chosen is None else chosen)
        flipped = torch.rand(count, generator=generator) < 0.5
        drawn = 2 * torch.rand(8, count, generator=generator) - 1
        return change(pixels, chosen, flipped, RANGES * drawn[:4], 1 + FACTORS * drawn[4:])

    return augment


# What `heavy` does to pixels, given which are chosen, who is flipped, the amounts in the order of
# RANGES and the factors in that of FACTORS.
_Change = Callable[[Tensor, Tensor | None, Tensor, Tensor, Tensor], Tensor]


def _change_by(kernels: native.Kernels, fill: Tensor) -> _Change:
    """In one pass over the pixels."""
    grey, turn = (GREY, TURN) if len(fill) == 3 else (torch.ones(1, 1), torch.zeros(1, 1))
    luma, turn = grey[0].contiguous(), turn.contiguous()

    def change(
        pixels: Tensor, chosen: Tensor | None, flipped: Tensor, amounts: Tensor, factors: Tensor
    ) -> Tensor:
        return kernels.warp_and_recolour(
            pixels, flipped, amounts, factors, luma, turn, fill, chosen
        )

    return change


def _change_in_torch(fill: Tensor, shape: tuple[int, ...]) -> _Change:
    """As torch operations, colours first, so that the fill stays the plain mean."""
    count, planes, height, width, values = shape
    channels = planes * values
    # Every batch uses the same memory: to get new pages from the system takes longer than to
    # compute what is written there.
    images, recoloured = fill.new_empty(2, count, channels, height, width)
    grid = torch.empty(count, 2, height, width)
    canvas = filled_canvas(
        fill.view(channels, 1, 1, 1), (count, channels, height, width, 1), margin=1
    ).squeeze(4)

    def change(
        pixels: Tensor, chosen: Tensor | None, flipped: Tensor, amounts: Tensor, factors: Tensor
    ) -> Tensor:
        pixels = select(pixels, chosen)
        size = len(pixels)
        angle, down, right, hue = amounts
        scale, brightness, contrast, saturation = factors
        images[:size].copy_(pixels.movedim(4, 2).reshape(size, channels, height, width))
        recolour(images[:size], brightness / 255, contrast, saturation, hue, recoloured[:size])
        framed = canvas[:size]
        torch.clamp(recoloured[:size], 0, 1, out=framed[:, :, 1:-1, 1:-1])
        warped = warp(framed, flipped, angle, scale, down, right, grid[:size])
        return warped.view(size, planes, values, height, width).movedim(2, 4)

    return change


AUGMENTATIONS: dict[str, Callable[[Tensor, tuple[int, ...]], Augmentation]] = {
    "none": none,
    "moderate": moderate,
    "heavy": heavy,
}


def filled_canvas(fill: Tensor, shape: tuple[int, ...], margin: int) -> Tensor:
    """Room for a batch of `shape` (B, P, H, W, K) with a margin, all of it the fill."""
    count, planes, height, width, values = shape
    canvas = fill.new_empty(count, planes, height + 2 * margin, width + 2 * margin, values)
    return canvas.copy_(fill)


def flip_and_shift(
    pixels: Tensor, flipped: Tensor, down: Tensor, right: Tensor, canvas: Tensor
) -> Tensor:
    """Mirror the `flipped` images left to right, then move each by its own `down` and `right`.

    `canvas` is a workspace from `filled_canvas`: its margin, never written to, is what moves in. A
    new one for every batch would be a pass over more memory than the batch itself has.
    """
    count, planes, height, width, values = pixels.shape
    device = pixels.device
    canvas_height, canvas_width = canvas.shape[2:4]
    margin = (canvas_height - height) // 2

    # The mirrored images are put last, so that one reversal of a slice mirrors them all; the
    # selection at the end brings everybody back to their place.
    straight, mirrored = (~flipped).nonzero().squeeze(1), flipped.nonzero().squeeze(1)
    place = torch.cat([straight, mirrored]).argsort()
    middle = canvas[:count, :, margin : margin + height, margin : margin + width]
    torch.div(pixels.index_select(0, straight.to(device)), 255, out=middle[: len(straight)])
    reversed_rows = pixels.index_select(0, mirrored.to(device)).flip(3)
    torch.div(reversed_rows, 255, out=middle[len(straight) :])

    # Every stretch of `width` pixels in the canvas, as a view: a shift picks one for each row.
    stretches = canvas.flatten().unfold(0, width * values, values)
    top = torch.arange(planes) * canvas_height + margin
    first_rows = (place * planes * canvas_height - down).view(-1, 1, 1) + top.view(-1, 1)
    rows = first_rows + torch.arange(height)
    starts = rows * canvas_width + (margin - right).view(-1, 1, 1)
    shifted = stretches.index_select(0, starts.flatten().to(device))
    return shifted.view(pixels.shape)


def recolour(
    images: Tensor,
    brightness: Tensor,
    contrast: Tensor,
    saturation: Tensor,
    hue: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """Change the colours of (B, C, H, W) images; `hue` is an angle, the others are factors.

    In this order: brightness multiplies, contrast scales about the image's mean luma, saturation
    scales about each pixel's luma, hue turns the chroma in YIQ. Each step is affine in the pixel,
    so that all four are one matrix and one offset per image; nothing is cut to [0, 1]. Saturation
    and hue mean nothing to grey images and leave them alone.
    """
    flat = images.flatten(2)
    brightness, contrast, saturation, hue = (
        knob.view(-1, 1, 1).to(images) for knob in (brightness, contrast, saturation, hue)
    )
    if images.shape[1] == 3:
        grey, turn = GREY.to(images), TURN.to(images)
        chroma = hue.cos() * (torch.eye(3).to(images) - grey) + hue.sin() * turn
        matrix = brightness * contrast * (grey + saturation * chroma)
    else:
        grey = torch.ones(1, 1).to(images)
        matrix = brightness * contrast
    # Saturation and hue leave grey alone, so the mean luma passes through them unchanged.
    mean_luma = grey @ flat.mean(2, keepdim=True)
    offset = brightness * (1 - contrast) * mean_luma
    flat_out = None if out is None else out.view(flat.shape)
    return torch.baddbmm(offset, matrix, flat, out=flat_out).view_as(images)


def warp(
    framed: Tensor,
    flipped: Tensor,
    angle: Tensor,
    scale: Tensor,
    down: Tensor,
    right: Tensor,
    grid: Tensor,
) -> Tensor:
    """Flip, turn, scale and move images about their centres, sampled bilinearly.

    `framed` are (B, C, H + 2, W + 2): images in a frame of the fill, one pixel wide, so that
    sampling outside of it, which repeats the border, gives the fill. `grid` is a workspace on the
    CPU, (B, 2, H, W).
    """
    height, width = framed.shape[2:]
    y = torch.arange(1, height - 1).view(1, -1, 1) - ((height - 1) / 2 + down.view(-1, 1, 1))
    x = torch.arange(1, width - 1).view(1, 1, -1) - ((width - 1) / 2 + right.view(-1, 1, 1))
    # Backwards: for each pixel of the result, where it was in the source, from the centre and in
    # the units of grid_sample, half the image.
    cosine = (angle.cos() / scale).view(-1, 1, 1)
    sine = (angle.sin() / scale).view(-1, 1, 1)
    mirror = torch.where(flipped, -2 / width, 2 / width).view(-1, 1, 1)
    torch.add(mirror * cosine * x, mirror * sine * y, out=grid[:, 0])
    torch.sub(2 / height * cosine * y, 2 / height * sine * x, out=grid[:, 1])
    return F.grid_sample(
        framed, grid.to(framed).movedim(1, -1), padding_mode="border", align_corners=False
    )
