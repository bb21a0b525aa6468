"""TRACK_OBJECT: find a masked object of the first frame in the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import fft

from .segment import opponent

SEARCH = 16
"""Search radius around the position that an object's motion predicts, in pixels along each axis."""
STILL = 2.5
"""Pixels from first to last frame below which an object counts as still."""


@dataclass(frozen=True)
class Track:
    """The path of an object. `positions`: its centre (x, y) in pixels in each frame, from the first."""

    direction: str
    positions: tuple[tuple[float, float], ...]


def track_object(frames: np.ndarray, mask: np.ndarray) -> Track:
    """Follow the object under the bool [H, W] `mask` of the first frame through uint8 [F, H, W, 3] `frames`.

    In each frame, the masked patch moves to the position with the smallest squared colour difference (a masked sum of
    squared differences over a window, by FFT, with subpixel refinement by a parabola). The window follows the motion.
    Raises ValueError for an empty mask.
    """
    ys, xs = np.nonzero(mask)
    if not len(ys):
        raise ValueError("the mask is empty")
    top, bottom, left, right = ys.min(), ys.max() + 1, xs.min(), xs.max() + 1
    template = _Template(opponent(frames[0, top:bottom, left:right]), mask[top:bottom, left:right])
    offset = np.array([xs.mean() - left, ys.mean() - top])
    corner = np.array([left, top], dtype=float)  # of the patch, in the current frame
    velocity = np.zeros(2)
    positions = [(float(xs.mean()), float(ys.mean()))]
    for frame in frames[1:]:
        found = template.find(opponent(frame), corner + velocity)
        corner, velocity = found, found - corner
        positions.append((float(corner[0] + offset[0]), float(corner[1] + offset[1])))
    return Track(direction_of(positions), tuple(positions))


def direction_of(positions: list[tuple[float, float]]) -> str:
    """Return the direction from the first to the last position: right, left, up, down or still."""
    dx, dy = positions[-1][0] - positions[0][0], positions[-1][1] - positions[0][1]
    if np.hypot(dx, dy) < STILL:
        return "still"
    if abs(dx) >= abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


class _Template:
    """A masked patch, prepared for the search.

    With mask m, patch p and window w, the cost of a position is the sum of m (w - p)^2: the correlation of m with w^2,
    minus twice that of m p with w, plus a constant. This takes four transforms of a window and one inverse.
    """

    def __init__(self, patch: np.ndarray, mask: np.ndarray) -> None:
        self.height, self.width = mask.shape
        self.size = (self.height + 2 * SEARCH, self.width + 2 * SEARCH)
        self.padded = (fft.next_fast_len(self.size[0], real=True), fft.next_fast_len(self.size[1], real=True))
        inside = mask.astype(np.float32)
        masked = patch * inside[..., None]
        self.constant = float((masked * patch).sum())
        self.pixels = float(inside.sum())
        kernels = np.concatenate([-2 * masked, inside[..., None]], axis=-1)
        self.kernels = np.conj(np.asarray(fft.rfft2(kernels, self.padded, axes=(0, 1))))

    def find(self, colours: np.ndarray, guess: np.ndarray) -> np.ndarray:
        """Return the best corner (x, y) for the patch near `guess`. Ties go to the nearest one."""
        x0, y0 = (int(v) - SEARCH for v in np.rint(guess))
        # Outside the picture, repeat the nearest pixel, so that a partly visible object can still be found.
        rows = np.clip(np.arange(y0, y0 + self.size[0]), 0, colours.shape[0] - 1)
        columns = np.clip(np.arange(x0, x0 + self.size[1]), 0, colours.shape[1] - 1)
        window = colours[rows[:, None], columns[None]]
        channels = np.concatenate([window, np.einsum("...i,...i->...", window, window)[..., None]], axis=-1)
        product = (np.asarray(fft.rfft2(channels, self.padded, axes=(0, 1))) * self.kernels).sum(-1)
        places = 2 * SEARCH + 1
        cost = (np.asarray(fft.irfft2(product, self.padded))[:places, :places] + self.constant) / self.pixels
        v, u = np.mgrid[:places, :places]
        cost = cost + 0.05 * ((u + x0 - guess[0]) ** 2 + (v + y0 - guess[1]) ** 2)
        row, column = np.unravel_index(int(np.argmin(cost)), cost.shape)
        return np.array([x0 + column + _vertex(cost[row, :], column), y0 + row + _vertex(cost[:, column], row)])


def _vertex(values: np.ndarray, minimum: int | np.intp) -> float:
    """Fit a parabola to the index `minimum` and its neighbours. Returns the offset of its vertex, in -0.5..0.5."""
    if minimum == 0 or minimum == len(values) - 1:
        return 0.0
    before, middle, after = (float(values[minimum + k]) for k in (-1, 0, 1))
    curve = before - 2 * middle + after
    return 0.0 if curve <= 0 else max(-0.5, min(0.5, (before - after) / (2 * curve)))
