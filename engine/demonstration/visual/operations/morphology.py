"""SciPy's binary morphology on bool [H, W] masks, with bool arrays (and their types) out."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

CROSS = ndimage.generate_binary_structure(2, 1)
SQUARE = ndimage.generate_binary_structure(2, 2)


def dilate(mask: np.ndarray, structure: np.ndarray = CROSS, steps: int = 1) -> np.ndarray:
    """Grown by `steps`."""
    return np.asarray(ndimage.binary_dilation(mask, structure, iterations=steps), dtype=bool)


def erode(mask: np.ndarray, *, keep_border: bool = False) -> np.ndarray:
    """Shrunk by one; `keep_border`: not from the picture's border."""
    return np.asarray(ndimage.binary_erosion(mask, CROSS, border_value=int(keep_border)), dtype=bool)


def fill_holes(mask: np.ndarray) -> np.ndarray:
    """With its holes filled."""
    return np.asarray(ndimage.binary_fill_holes(mask), dtype=bool)


def component_at(mask: np.ndarray, x: int, y: int) -> np.ndarray:
    """The connected part of `mask` that holds (x, y), which must be in it."""
    labels = np.zeros(mask.shape, dtype=np.int32)
    ndimage.label(mask, CROSS, output=labels)
    return labels == labels[y, x]
