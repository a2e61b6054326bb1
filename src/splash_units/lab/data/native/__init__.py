"""Augmentation on the CPU in C++, built and threaded like the SPLASH kernel.

Where it can't be built or loaded, or `SPLASH_KERNEL=reference` asks for plain torch, `load` gives
None and the torch operations in `augment` serve, which define what is computed.
"""

import ctypes
import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from splash_units.kernels.native import building
from splash_units.kernels.native import cache as built
from splash_units.kernels.native.toolchain import (
    Compiler,
    Unavailable,
    chosen_instruction_set,
    find_compiler,
)

SOURCES = Path(__file__).resolve().parent


class Kernels:
    """The library's functions on images (N, P, H, W, K), of which `chosen` (B,) picks a batch.

    Without it all of them are the batch. Its indices are not checked. The results are new tensors.
    """

    def __init__(self, library: Path) -> None:
        functions = ctypes.CDLL(str(library))
        self._convert = functions.splash_convert
        self._flip_and_shift = functions.splash_flip_and_shift
        self._warp_and_recolour = functions.splash_warp_and_recolour

    def convert(self, pixels: Tensor, chosen: Tensor | None = None) -> Tensor:
        """To floats in [0, 1], as a division by 255."""
        return _call(self._convert, pixels, chosen)

    def flip_and_shift(
        self,
        pixels: Tensor,
        flipped: Tensor,
        down: Tensor,
        right: Tensor,
        fill: Tensor,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """As `augment.flip_and_shift`, bit for bit; `fill` has a value for each channel."""
        return _call(self._flip_and_shift, pixels, chosen, flipped, down, right, fill)

    def warp_and_recolour(
        self,
        pixels: Tensor,
        flipped: Tensor,
        ranges: Tensor,
        factors: Tensor,
        luma: Tensor,
        turn: Tensor,
        fill: Tensor,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """As `augment.recolour`, cut to [0, 1], and `augment.warp`, but for rounding.

        `ranges` (4, B) are angle, down, right and hue, `factors` (4, B) scale, brightness, contrast
        and saturation; `luma` (C,) and `turn` (C, C) say what grey and a turn of the hue are.
        """
        if pixels.shape[1] * pixels.shape[4] not in (1, 3):
            raise ValueError(f"images have 1 or 3 channels, got batches {tuple(pixels.shape)}")
        drawn = (flipped, ranges, factors)
        return _call(self._warp_and_recolour, pixels, chosen, *drawn, luma, turn, fill)


def load() -> Kernels | None:
    """The functions; None where the torch operations are to serve."""
    return None if os.environ.get("SPLASH_KERNEL") == "reference" else _attempt()


@cache
def _attempt() -> Kernels | None:
    if os.name != "posix":
        return None
    try:
        compiler: Compiler | Unavailable = find_compiler()
    except Unavailable as error:
        compiler = error
    try:
        folder, instruction_set = built.default_folder(), chosen_instruction_set()
        # It takes a few seconds, too little for a notice.
        return Kernels(building.library(folder, instruction_set, compiler, SOURCES, notice=None))
    except (Unavailable, OSError):
        return None


def _call(
    function: "ctypes._NamedFuncPointer", pixels: Tensor, chosen: Tensor | None, *others: Tensor
) -> Tensor:
    images = pixels if chosen is None else chosen
    result = torch.empty(len(images), *pixels.shape[1:])
    indices = None if chosen is None else _address(chosen)
    # A size passed as a plain int would arrive with 32 bits.
    sizes = (ctypes.c_int64(size) for size in result.shape)
    function(_address(pixels), indices, *sizes, *map(_address, others), _address(result))
    return result


def _address(tensor: Tensor) -> ctypes.c_void_p:
    assert tensor.is_cpu
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())
