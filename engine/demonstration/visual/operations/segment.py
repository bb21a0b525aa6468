"""SEGMENT_OBJECT_AT: segment the region around a point that differs from its surroundings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from skimage.segmentation import watershed

CROSS = ndimage.generate_binary_structure(2, 1)
SQUARE = ndimage.generate_binary_structure(2, 2)

TOLERANCES = (14.0, 22.0, 34.0, 50.0)
"""Colour distances to try for a region, in units of `opponent`. The one with the sharpest edge wins."""
MIN_AREA = 12
"""Minimum pixels of an object. Anything smaller is noise."""
EDGE = 3
"""Width of the band around a region in which to search its exact edge, in pixels."""
PAD = EDGE + 2
"""Margin around a cropped region, in pixels."""

_OPPONENT = np.array([[0.55, 0.9, -0.45], [0.75, -0.9, -0.45], [0.25, 0.0, 0.9]], dtype=np.float32)
"""RGB → lightness, red-green, yellow-blue, scaled so that equal distances look about equal."""


def opponent(image: np.ndarray) -> np.ndarray:
    """Convert uint8 [..., 3] RGB to float32 [..., 3] in which Euclidean distance approximates colour distance."""
    return image.astype(np.float32) @ _OPPONENT


def lengths(vectors: np.ndarray) -> np.ndarray:
    """Return Euclidean lengths along the last axis."""
    return np.sqrt(np.einsum("...i,...i->...", vectors, vectors))


def segment_at(image: np.ndarray, x: int, y: int) -> np.ndarray | None:
    """Return the object at (x, y) of a uint8 [H, W, 3] picture as a bool [H, W] mask, or None without a distinct one.

    It grows regions of colours near the point's at several tolerances (as in maximally stable regions), keeps the one
    with the sharpest edge, and refines the edge by a watershed on the gradient.
    """
    height, width = image.shape[:2]
    if not (0 <= x < width and 0 <= y < height):
        return None
    colours = opponent(image)
    y0, y1, x0, x1 = max(0, y - 1), y + 2, max(0, x - 1), x + 2
    seed = np.median(colours[y0:y1, x0:x1].reshape(-1, 3), axis=0)
    distance = lengths(colours - seed)
    distance = ndimage.uniform_filter(distance, 3) * 0.5 + distance * 0.5
    best: tuple[float, Region] | None = None
    last_area = 0
    for tolerance in TOLERANCES:
        region = _grow(distance < tolerance, x, y)
        if region is None:
            continue
        if region.area > 0.55 * height * width:  # background
            break
        if region.area < MIN_AREA or region.area == last_area:
            continue
        last_area = region.area
        top, bottom, left, right = region.box
        if (top == 0) + (bottom == height) + (left == 0) + (right == width) >= 3:  # sides of the picture it touches
            continue
        score = _sharpness(region, distance)
        if score >= 48.0:  # the edge is clear: try no other tolerance
            best = (score, region)
            break
        if best is None or score > best[0] * 1.05:
            best = (score, region)
    if best is None:
        return None
    mask = np.zeros((height, width), dtype=bool)
    mask[best[1].part] = _settle_edge(best[1], colours)
    return mask


@dataclass(frozen=True)
class Region:
    """A region, cropped with a margin of `PAD` pixels. `box`: top, bottom, left and right of the region itself."""

    inside: np.ndarray
    part: tuple[slice, slice]
    box: tuple[int, int, int, int]
    area: int


def _grow(near: np.ndarray, x: int, y: int) -> Region | None:
    """Return the connected component of `near` at the point, with holes filled."""
    if not near[y, x]:
        return None
    labels = np.zeros(near.shape, dtype=np.int32)
    ndimage.label(near, CROSS, output=labels)
    region = labels == labels[y, x]
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    part = (slice(max(0, top - PAD), bottom + PAD), slice(max(0, left - PAD), right + PAD))
    inside = np.asarray(ndimage.binary_fill_holes(region[part]), dtype=bool)
    return Region(inside, part, (top, bottom, left, right), int(np.count_nonzero(inside)))


def _sharpness(region: Region, distance: np.ndarray) -> float:
    """Measure the colour jump across the edge: the distance from the seed two pixels outside minus the one inside."""
    near = dilate(region.inside)
    outside = dilate(near, SQUARE) & ~near
    local = distance[region.part]
    if not outside.any():
        return 0.0
    ring = local[outside]
    quartile = np.partition(ring, len(ring) // 4)[len(ring) // 4]
    return float(quartile - np.median(local[region.inside]))


def _settle_edge(region: Region, colours: np.ndarray) -> np.ndarray:
    """Move the edge, by at most `EDGE` pixels, to where the colour changes fastest."""
    core = erode(region.inside, keep_border=True)
    if np.count_nonzero(core) < MIN_AREA // 2:
        core = region.inside
    outer = dilate(region.inside, SQUARE, EDGE)
    markers = np.where(core, 1, np.where(outer, 0, 2)).astype(np.int32)
    patch = colours[region.part]
    away = lengths(patch - np.median(patch[core], axis=0))
    gradient = np.hypot(ndimage.sobel(away, 0), ndimage.sobel(away, 1))
    return watershed(gradient, markers) == 1


def dilate(mask: np.ndarray, structure: np.ndarray = CROSS, steps: int = 1) -> np.ndarray:
    """Grow a mask by `steps`."""
    return np.asarray(ndimage.binary_dilation(mask, structure, iterations=steps), dtype=bool)


def erode(mask: np.ndarray, *, keep_border: bool = False) -> np.ndarray:
    """Shrink a mask by one pixel. With `keep_border`, do not shrink it at the picture's border."""
    return np.asarray(ndimage.binary_erosion(mask, CROSS, border_value=int(keep_border)), dtype=bool)
