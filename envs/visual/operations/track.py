"""TRACK_OBJECT: where a masked object of one frame is in the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.signal import fftconvolve

from .segment import opponent

SEARCH = 16
"""Farthest that an object is looked for from where it was in the frame before, in pixels along each axis."""
STILL = 2.5
"""Pixels from first to last frame, below which an object counts as standing still."""


@dataclass(frozen=True)
class Track:
    """Where an object went. `positions`: its centre (x, y) in pixels in each frame, from the first."""

    direction: str
    positions: tuple[tuple[float, float], ...]


def track_object(frames: np.ndarray, mask: np.ndarray) -> Track:
    """Follow the object under the bool [H, W] `mask` of the first frame through uint8 [F, H, W, 3] `frames`.

    In each frame the masked patch is moved to where its squared colour difference is least (a masked sum of squared
    differences over a window, by FFT, refined to less than a pixel by a parabola). The window follows the motion.
    Raises ValueError for an empty mask.
    """
    ys, xs = np.nonzero(mask)
    if not len(ys):
        raise ValueError("the mask is empty")
    top, bottom, left, right = ys.min(), ys.max() + 1, xs.min(), xs.max() + 1
    patch_mask = mask[top:bottom, left:right].astype(np.float32)
    patch = opponent(frames[0, top:bottom, left:right])
    centre = np.array([xs.mean(), ys.mean()])
    corner = np.array([left, top], dtype=float)  # of the patch, in the frame at hand
    velocity = np.zeros(2)
    positions = [(float(centre[0]), float(centre[1]))]
    offset = centre - corner
    for frame in frames[1:]:
        found = _find(opponent(frame), patch, patch_mask, corner + velocity, corner)
        velocity = found - corner
        corner = found
        positions.append((float(corner[0] + offset[0]), float(corner[1] + offset[1])))
    return Track(direction_of(positions), tuple(positions))


def direction_of(positions: list[tuple[float, float]]) -> str:
    """right, left, up, down or still, from the first to the last position."""
    dx, dy = positions[-1][0] - positions[0][0], positions[-1][1] - positions[0][1]
    if np.hypot(dx, dy) < STILL:
        return "still"
    if abs(dx) >= abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


def _find(
    colours: np.ndarray, patch: np.ndarray, patch_mask: np.ndarray, guess: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """The corner (x, y) at which the masked patch fits best, near `guess`; ties go to the place nearest to it."""
    height, width = patch_mask.shape
    reach = SEARCH
    x0, y0 = (int(v) for v in np.floor(np.minimum(guess, last)) - reach)
    x1, y1 = (int(v) for v in np.ceil(np.maximum(guess, last)) + reach)
    # Outside the picture the nearest pixel goes on, so an object that is partly out of it can still be found.
    rows = np.clip(np.arange(y0, y1 + height), 0, colours.shape[0] - 1)
    columns = np.clip(np.arange(x0, x1 + width), 0, colours.shape[1] - 1)
    window = colours[rows[:, None], columns[None]]
    flipped_mask = patch_mask[::-1, ::-1, None]
    flipped_patch = (patch * patch_mask[..., None])[::-1, ::-1]
    squares = fftconvolve((window**2).sum(-1), flipped_mask[..., 0], mode="valid")
    products = fftconvolve(window, flipped_patch, mode="valid", axes=(0, 1)).sum(-1)
    constant = float(((patch**2).sum(-1) * patch_mask).sum())
    cost = (squares - 2 * products + constant) / max(1.0, float(patch_mask.sum()))
    v, u = np.mgrid[: cost.shape[0], : cost.shape[1]]
    cost = cost + 0.05 * ((u + x0 - guess[0]) ** 2 + (v + y0 - guess[1]) ** 2)
    row, column = np.unravel_index(int(np.argmin(cost)), cost.shape)
    return np.array([x0 + column + _vertex(cost[row, :], column), y0 + row + _vertex(cost[:, column], row)])


def _vertex(values: np.ndarray, at: int | np.intp) -> float:
    """Where between its neighbours the minimum at `at` lies, in -0.5..0.5, by a parabola."""
    if at == 0 or at == len(values) - 1:
        return 0.0
    before, here, after = (float(values[at + k]) for k in (-1, 0, 1))
    curve = before - 2 * here + after
    return 0.0 if curve <= 0 else max(-0.5, min(0.5, (before - after) / (2 * curve)))
