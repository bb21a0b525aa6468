"""GET_PROPERTIES: colour, shape, area and centre of a mask."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import ndimage
from skimage.color import rgb2lab
from skimage.measure import find_contours

from .segment import erode

PROTOTYPES: dict[str, tuple[int, int, int]] = {
    "red": (214, 32, 36),
    "orange": (246, 138, 20),
    "yellow": (246, 226, 44),
    "green": (34, 156, 58),
    "cyan": (32, 204, 216),
    "blue": (36, 72, 210),
    "purple": (128, 44, 170),
    "pink": (246, 128, 186),
    "brown": (122, 74, 40),
    "black": (18, 18, 18),
    "grey": (128, 128, 128),
    "white": (244, 244, 244),
}
"""A colour gets the name of the nearest of these in CIELAB."""
HARMONICS = 8
"""Number of harmonics in the radial signature, which distinguishes shapes."""
ANGLES = 64
MAX_MISFIT = 0.11
"""Maximum distance of a signature from a known shape's. Shapes further from all of them are a `blob`."""


@dataclass(frozen=True)
class Properties:
    """The properties of a mask. `x`, `y`: centre of area in pixels. `area`: in pixels."""

    colour: str
    shape: str
    area: int
    x: float
    y: float


def properties_of(image: np.ndarray, mask: np.ndarray) -> Properties:
    """Measure the bool [H, W] `mask` on the uint8 [H, W, 3] `image`. Raises ValueError for an empty mask."""
    ys, xs = np.nonzero(mask)
    if not len(ys):
        raise ValueError("the mask is empty")
    inner = erode(mask)
    pixels = image[inner if inner.sum() >= 6 else mask]
    return Properties(
        colour=colour_name(np.median(pixels, axis=0)),
        shape=shape_name(mask),
        area=len(ys),
        x=float(xs.mean()),
        y=float(ys.mean()),
    )


def colour_name(rgb: np.ndarray) -> str:
    """Return the name of the prototype nearest to an RGB colour in 0..255."""
    distances = ((_prototypes() - _lab(np.asarray(rgb, dtype=float))) ** 2).sum(-1)
    return list(PROTOTYPES)[int(np.argmin(distances))]


def shape_name(mask: np.ndarray) -> str:
    """Return circle, square, triangle, star, cross, bar, or blob."""
    signature = radial_harmonics(mask)
    if signature is None:
        return "blob"
    names, known = _known_shapes()
    distances = np.abs(known - signature).max(-1)
    nearest = int(np.argmin(np.sqrt(((known - signature) ** 2).sum(-1))))
    return names[nearest] if distances[nearest] < MAX_MISFIT else "blob"


def radial_harmonics(mask: np.ndarray) -> np.ndarray | None:
    """Return a signature of the centre-to-edge distance by angle, float [HARMONICS], or None without an edge.

    It has the magnitudes of Fourier coefficients 1.. over the mean, and is invariant to rotation and size.
    """
    ys, xs = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    patch = np.pad(mask[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1], 2).astype(np.float32)
    smooth = ndimage.uniform_filter(patch, 3) if patch.sum() > 60 else patch
    contours = find_contours(smooth, 0.5)
    if not contours:
        return None
    contour = max(contours, key=len)
    py, px = np.nonzero(patch)
    dy, dx = contour[:, 0] - py.mean(), contour[:, 1] - px.mean()
    angles, radii = np.arctan2(dy, dx), np.hypot(dy, dx)
    order = np.argsort(angles)
    even = np.linspace(-np.pi, np.pi, ANGLES, endpoint=False)
    profile = np.interp(even, angles[order], radii[order], period=2 * np.pi)
    if profile.mean() <= 0:
        return None
    return np.abs(np.fft.rfft(profile))[1 : HARMONICS + 1] / (profile.mean() * ANGLES) * 2


@lru_cache(maxsize=1)
def _prototypes() -> np.ndarray:
    return _lab(np.array(list(PROTOTYPES.values()), dtype=float))


def _lab(rgb: np.ndarray) -> np.ndarray:
    return rgb2lab(rgb.reshape(1, -1, 3) / 255.0).reshape(rgb.shape)


@lru_cache(maxsize=1)
def _known_shapes() -> tuple[list[str], np.ndarray]:
    """Return names and signatures of the ideal shapes, drawn at a medium size."""
    side, radius = 61, 18.0
    v, u = np.mgrid[:side, :side] - side // 2
    u, v = u / radius, v / radius
    angle = np.arctan2(v, u)
    distance = np.hypot(u, v)

    def regular(corners: int) -> np.ndarray:
        step = 2 * np.pi / corners
        return distance * np.cos((angle % step) - step / 2) <= np.cos(np.pi / corners)

    def star(inner: float) -> np.ndarray:
        a = np.abs((angle + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
        tip, dip = np.array([1.0, 0.0]), inner * np.array([np.cos(np.pi / 5), np.sin(np.pi / 5)])
        x, y = distance * np.cos(a), distance * np.sin(a)
        return (dip[0] - tip[0]) * y - (dip[1] - tip[1]) * (x - tip[0]) >= 0

    arm = 0.36
    shapes = {
        "circle": distance <= 1,
        "square": regular(4),
        "triangle": regular(3),
        "star": star(0.5),
        "cross": (np.maximum(np.abs(u), np.abs(v)) <= 1) & (np.minimum(np.abs(u), np.abs(v)) <= arm),
        "bar": (np.abs(u) <= 1) & (np.abs(v) <= arm),
    }
    return list(shapes), np.array([radial_harmonics(mask) for mask in shapes.values()])
