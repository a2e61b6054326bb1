"""The embedded data set: scikit-learn's handwritten digits, at the networks' input size.

The 1,797 images are 8x8 with 17 levels. They are enlarged three times, bilinearly, and centred on a
black 32x32 canvas: like MNIST in LeNet5, the strokes then keep clear of the border that unpadded
convolutions see less of. All arithmetic is in whole numbers, so the pixels are the same everywhere.
"""

from __future__ import annotations

import numpy as np

from .dataset import DataSet, from_arrays

FACTOR = 3
CANVAS = 32
LEVELS = 16  # of scikit-learn's pixels: 0 to 16


def load_digits() -> DataSet:
    """The digits in a fixed stratified split of about 80 and 20 %."""
    from sklearn.datasets import load_digits as sklearn_digits

    digits = sklearn_digits()
    images = enlarge(digits.images.astype(np.int64))
    return from_arrays("digits", images, digits.target, class_names=tuple("0123456789"))


def enlarge(images: np.ndarray) -> np.ndarray:
    """Bring (N, 8, 8) images of levels 0 to 16 to (N, 32, 32) uint8."""
    weights = _bilinear_weights(images.shape[1])
    scale = FACTOR**2 * LEVELS
    enlarged = weights @ images @ weights.T
    pixels = ((2 * 255 * enlarged + scale) // (2 * scale)).astype(np.uint8)
    margin = (CANVAS - pixels.shape[1]) // 2
    return np.pad(pixels, ((0, 0), (margin, margin), (margin, margin)))


def _bilinear_weights(size: int) -> np.ndarray:
    """FACTOR times the matrix that enlarges a row of `size` pixels; its rows sum to FACTOR.

    The centre of fine pixel i lies at coarse position (i + 1/2) / FACTOR - 1/2, so with FACTOR = 3
    it mixes the coarse pixel it falls into with the neighbour it leans towards, 2 to 1 or 3 to 0.
    """
    weights = np.zeros((FACTOR * size, size), dtype=np.int64)
    for fine in range(FACTOR * size):
        coarse, offset = fine // FACTOR, fine % FACTOR - 1
        neighbour = min(max(coarse + offset, 0), size - 1)
        weights[fine, coarse] += FACTOR - abs(offset)
        weights[fine, neighbour] += abs(offset)
    return weights
