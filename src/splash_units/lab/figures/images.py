"""Images as a chart and a page carry them: within themselves, and a change made visible."""

import base64
import io
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def magnified(change: Array) -> tuple[Array, float]:
    """A change as a picture in which none is grey, as strong as fits; and how much that is."""
    factor = 0.5 / (float(np.abs(change).max()) or 1.0)
    return 0.5 + factor * change, factor


def data_url(image: Array, side: int | None = None) -> str:
    """An image (channels first, in [0, 1]) as an address that is a PNG itself.

    `side` enlarges it to so many pixels, for those who would blur it: its own stay squares.
    """
    from PIL import Image

    pixels = (255 * image.clip(0, 1)).round().astype(np.uint8)
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    if side is not None:
        picture = picture.resize((side, side), Image.Resampling.NEAREST)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
