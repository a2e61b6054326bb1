"""What a data set is once it is in memory, and how to make one of arrays or an image folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)


class DataError(ValueError):
    """Data that is missing, damaged or contradictory; the message names the file and the remedy."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Images and labels, whole and resident.

    Images are uint8 of shape (N, C, H, W), stored channels last, so that one image, one row and one
    pixel are each contiguous and a batch is a copy of rows. `mean` and `std` are per channel, of
    images in [0, 1]; the networks standardise with them.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    num_classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.class_names) != self.num_classes:
            raise DataError(
                f"{self.name}: {len(self.class_names)} class names for {self.num_classes} classes"
            )
        _check_part(self.name, "train", self.train_images, self.train_labels, self.num_classes)
        _check_part(self.name, "test", self.test_images, self.test_labels, self.num_classes)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise DataError(
                f"{self.name}: training images are {tuple(self.train_images.shape[1:])}, "
                f"test images {tuple(self.test_images.shape[1:])}; they must have one shape"
            )
        if not len(self.mean) == len(self.std) == self.channels:
            raise DataError(
                f"{self.name}: mean and std need {self.channels} values, one a channel; "
                f"got {len(self.mean)} and {len(self.std)}"
            )
        if any(not deviation > 0 for deviation in self.std):
            raise DataError(f"{self.name}: std must be positive in every channel, got {self.std}")

    @property
    def channels(self) -> int:
        return int(self.train_images.shape[1])

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.train_images.shape[2]), int(self.train_images.shape[3])


def from_arrays(
    name: str,
    images: Any,
    labels: Any,
    test_images: Any = None,
    test_labels: Any = None,
    *,
    test_fraction: float = 0.2,
    class_names: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> DataSet:
    """Make a data set of arrays or tensors.

    Images are uint8: (N, H, W), (N, C, H, W) or (N, H, W, C), with one or three channels. Labels
    are whole numbers from 0. Without test images, the fixed stratified split of `stratified_split`
    sets some aside. `mean` and `std` are those of the training images unless given.
    """
    images, labels = _as_images(name, images), _as_labels(name, labels)
    if len(images) != len(labels):
        raise DataError(f"{name}: {len(images)} images but {len(labels)} labels")
    if test_images is None and test_labels is None:
        train, test = stratified_split(labels, test_fraction, name=name)
        images, test_images = images[train], images[test]
        labels, test_labels = labels[train], labels[test]
    elif test_images is None or test_labels is None:
        raise DataError(f"{name}: give both test_images and test_labels, or neither")
    else:
        test_images, test_labels = _as_images(name, test_images), _as_labels(name, test_labels)
    num_classes = _class_count(labels, test_labels) if class_names is None else len(class_names)
    measured_mean, measured_std = channel_statistics(images)
    return DataSet(
        name=name,
        train_images=channels_last(images),
        train_labels=labels,
        test_images=channels_last(test_images),
        test_labels=test_labels,
        num_classes=num_classes,
        class_names=tuple(class_names or (str(label) for label in range(num_classes))),
        mean=measured_mean if mean is None else tuple(mean),
        std=measured_std if std is None else tuple(std),
    )


def from_folder(
    folder: str | Path,
    *,
    name: str | None = None,
    size: int | tuple[int, int] = 32,
    grayscale: bool = False,
    test_fraction: float = 0.2,
) -> DataSet:
    """Make a data set of a folder of images, one sub-folder per class.

    `folder/CLASS/*.png` is split by `stratified_split`; `folder/train/CLASS/*` and
    `folder/test/CLASS/*` are taken as they are. Classes are numbered in the order of their names,
    files are read in the order of theirs. Every image is scaled to `size` (height, width).
    """
    folder = Path(folder)
    name = folder.name if name is None else name
    size = (size, size) if isinstance(size, int) else size
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; it should hold one sub-folder per class")
    split = (folder / "train").is_dir() and (folder / "test").is_dir()
    top = folder / "train" if split else folder
    classes = _subfolders(top)
    if len(classes) < 2:
        raise DataError(
            f"{top}: needs one sub-folder for each of at least two classes, has {classes}"
        )
    images, labels = _read_classes(top, classes, size, grayscale)
    if not split:
        return from_arrays(name, images, labels, test_fraction=test_fraction, class_names=classes)
    if unknown := sorted(set(_subfolders(folder / "test")) - set(classes)):
        raise DataError(f"{folder / 'test'}: classes {unknown} are not in {top}")
    return from_arrays(
        name,
        images,
        labels,
        *_read_classes(folder / "test", classes, size, grayscale),
        class_names=classes,
    )


def stratified_split(
    labels: Tensor, test_fraction: float = 0.2, *, name: str = "labels"
) -> tuple[Tensor, Tensor]:
    """Indices of a training and a test part in which every class has its share.

    Within each class the test samples are evenly spaced in file order. No random numbers, so the
    split is the same on every machine and in every version.
    """
    if not 0 < test_fraction < 1:
        raise DataError(f"{name}: test_fraction must lie between 0 and 1, got {test_fraction}")
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero().squeeze(1)
        if len(members) < 2:
            raise DataError(f"{name}: class {label} has one sample; a split needs at least two")
        count = min(max(round(len(members) * test_fraction), 1), len(members) - 1)
        # The middles of `count` equal stretches, in whole numbers so that no rounding can differ.
        middles = (2 * torch.arange(count) + 1) * len(members) // (2 * count)
        is_test[members[middles]] = True
    return (~is_test).nonzero().squeeze(1), is_test.nonzero().squeeze(1)


def channels_last(images: Tensor) -> Tensor:
    """The same images with each pixel's channels side by side in memory."""
    return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images, on the scale of [0, 1]."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        # A histogram is exact, and needs no float copy of the images.
        counts = torch.bincount(images[:, channel].flatten(), minlength=256).double()
        share = counts / counts.sum()
        mean = (share * levels).sum()
        means.append(float(mean))
        deviations.append(float((share * (levels - mean) ** 2).sum().sqrt()))
    return tuple(means), tuple(deviations)


def _check_part(name: str, part: str, images: Tensor, labels: Tensor, num_classes: int) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise DataError(
            f"{name}: {part} images must be uint8 of shape (N, C, H, W), "
            f"got {images.dtype} {tuple(images.shape)}"
        )
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise DataError(
            f"{name}: {part} labels must be int64 of shape (N,), "
            f"got {labels.dtype} {tuple(labels.shape)}"
        )
    if len(images) != len(labels):
        raise DataError(f"{name}: {len(images)} {part} images but {len(labels)} labels")
    if len(labels) == 0:
        raise DataError(f"{name}: no {part} images")
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= num_classes:
        raise DataError(
            f"{name}: {part} labels run from {lowest} to {highest}, "
            f"allowed are 0 to {num_classes - 1}"
        )


def _as_images(name: str, array: Any) -> Tensor:
    images: Tensor = torch.as_tensor(array)
    if images.dtype != torch.uint8:
        raise DataError(f"{name}: images must be uint8 (0 to 255), got {images.dtype}")
    if images.ndim == 3:
        images = images.unsqueeze(1)
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.permute(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise DataError(
            f"{name}: images must be (N, H, W), (N, C, H, W) or (N, H, W, C) with 1 or 3 channels, "
            f"got {tuple(images.shape)}"
        )
    return images


def _as_labels(name: str, array: Any) -> Tensor:
    labels: Tensor = torch.as_tensor(array)
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise DataError(
            f"{name}: labels must be whole numbers of shape (N,), "
            f"got {labels.dtype} {tuple(labels.shape)}"
        )
    return labels.long()


def _class_count(*labels: Tensor) -> int:
    return max(int(part.max()) + 1 if len(part) else 0 for part in labels)


def _subfolders(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _read_classes(
    folder: Path, classes: Sequence[str], size: tuple[int, int], grayscale: bool
) -> tuple[np.ndarray, np.ndarray]:
    images: list[np.ndarray] = []
    labels: list[int] = []
    for label, class_name in enumerate(classes):
        files = sorted((folder / class_name).glob("*"))
        files = [path for path in files if path.suffix.lower() in IMAGE_SUFFIXES]
        if not files:
            raise DataError(
                f"{folder / class_name}: holds no image ({', '.join(sorted(IMAGE_SUFFIXES))})"
            )
        images.extend(_read_image(path, size, grayscale) for path in files)
        labels.extend([label] * len(files))
    return np.stack(images), np.array(labels, dtype=np.int64)


def _read_image(path: Path, size: tuple[int, int], grayscale: bool) -> np.ndarray:
    import PIL.Image

    try:
        with PIL.Image.open(path) as file:
            image: Image = file.convert("L" if grayscale else "RGB")
    except (OSError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a readable image ({error}); repair or remove it") from error
    height, width = size
    if image.size != (width, height):
        image = image.resize((width, height), PIL.Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if grayscale else pixels.transpose(2, 0, 1)
