"""Batches of a resident data set: one selection of rows and one augmentation each."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor

from .augment import AUGMENTATIONS, Augmentation


def batches(
    images: Tensor,
    labels: Tensor,
    batch_size: int,
    *,
    order: Tensor | None = None,
    augment: str = "none",
    generator: Generator | None = None,
    fill: Sequence[float] | None = None,
    device: torch.device | str = "cpu",
    channels_last: bool = True,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (float images in [0, 1], labels) on `device`; the last batch may be smaller.

    `images` are uint8 (N, C, H, W), best already on `device` and in the layout of the batches
    (`channels_last`, as in a DataSet, or contiguous); otherwise they are brought there once per
    call. `order` holds the indices to go through, in their order; None means all, first to last.
    `augment` is "none", "moderate" or "heavy"; the
    latter two need `fill`, the mean of each channel (`DataSet.mean`), and draw from `generator`,
    a CPU generator (None is torch's global one).
    """
    _check_arguments(images, labels, batch_size, order)
    if augment not in AUGMENTATIONS:
        near = difflib.get_close_matches(str(augment), AUGMENTATIONS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"augment is one of {', '.join(AUGMENTATIONS)}, got {augment!r}{hint}")
    if generator is not None and generator.device.type != "cpu":
        raise ValueError(f"generator must be a CPU generator, got one for {generator.device}")
    channels = images.shape[1]
    if augment == "none":
        fill = [0.0] * channels
    elif fill is None or len(fill) != channels:
        raise ValueError(
            f"augment={augment!r} needs fill, one value for each of {channels} channels; got {fill}"
        )
    # (N, P, H, W, K): see augment.
    pixels = images.to(device)
    pixels = pixels.movedim(1, 3).unsqueeze(1) if channels_last else pixels.unsqueeze(4)
    pixels = pixels.contiguous()
    order = None if order is None else order.contiguous()
    filling = torch.tensor(list(fill), dtype=torch.float32, device=device)
    augmentation = AUGMENTATIONS[augment](filling, (batch_size, *pixels.shape[1:]))
    return _generate(
        pixels, labels.to(device), batch_size, order, augmentation, generator, channels_last
    )


def _generate(
    pixels: Tensor,
    labels: Tensor,
    batch_size: int,
    order: Tensor | None,
    augmentation: Augmentation,
    generator: Generator | None,
    channels_last: bool,
) -> Iterator[tuple[Tensor, Tensor]]:
    count = len(pixels) if order is None else len(order)
    for start in range(0, count, batch_size):
        stop = min(start + batch_size, count)
        if order is None:
            floats, chosen_labels = augmentation(pixels[start:stop], generator), labels[start:stop]
        else:
            chosen = order[start:stop].to(pixels.device)
            floats = augmentation(pixels, generator, chosen)
            chosen_labels = labels.index_select(0, chosen)
        floats = floats.contiguous()
        # Without the dimension of size 1 that is left, (B, H, W, C) or (B, C, H, W).
        images = floats.squeeze(1).movedim(3, 1) if channels_last else floats.squeeze(4)
        yield images, chosen_labels


def _check_arguments(images: Tensor, labels: Tensor, batch_size: int, order: Tensor | None) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(
            f"images must be uint8 (N, C, H, W), got {images.dtype} {tuple(images.shape)}"
        )
    if len(images) != len(labels):
        raise ValueError(f"{len(images)} images but {len(labels)} labels")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if order is not None and (order.dtype != torch.int64 or order.ndim != 1):
        raise ValueError(
            f"order must be int64 of shape (N,), got {order.dtype} {tuple(order.shape)}"
        )
    if order is not None and len(order) and not 0 <= order.min() <= order.max() < len(images):
        raise ValueError(
            f"order holds indices of {len(images)} images, got {order.min()} to {order.max()}"
        )
