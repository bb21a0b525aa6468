"""Results of tools, drawn on the picture for a policy that sees."""

from __future__ import annotations

import numpy as np

MARK = np.array([255, 0, 255], np.float32)
"""Magenta: no colour that scenes are drawn in."""
TINT = 0.35
"""Opacity of the mark's colour inside a mask. Its edge is opaque."""
ARM = 3
"""Pixels that a cross reaches from its centre."""


def with_mask(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Draw a bool [H, W] mask on a uint8 [H, W, 3] picture: its inside tinted, its edge opaque."""
    inside = mask.copy()
    inside[1:-1, 1:-1] &= mask[:-2, 1:-1] & mask[2:, 1:-1] & mask[1:-1, :-2] & mask[1:-1, 2:]
    share = np.where(mask & ~inside, 1.0, np.where(mask, TINT, 0.0))[..., None].astype(np.float32)
    return (image + share * (MARK - image) + 0.5).astype(np.uint8)


def with_cross(image: np.ndarray, x: float, y: float) -> np.ndarray:
    """Draw a cross at a pixel of a uint8 [H, W, 3] picture, clipped to it."""
    drawn = image.copy()
    height, width = image.shape[:2]
    column, row = round(x), round(y)
    if 0 <= row < height:
        drawn[row, max(0, column - ARM) : max(0, column + ARM + 1)] = MARK
    if 0 <= column < width:
        drawn[max(0, row - ARM) : max(0, row + ARM + 1), column] = MARK
    return drawn
