"""ZOOM_IN: a box, enlarged, and the objects in it."""

from __future__ import annotations

import numpy as np
from PIL import Image
from skimage.segmentation import felzenszwalb

ENLARGED = 128
"""Longer side of the enlarged crop, in pixels, at least."""
MIN_AREA = 24
"""Of an object, in pixels."""
MOST = 3
"""Objects that are reported."""


def crop(image: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    """Return the part of a uint8 [H, W, 3] picture in `[x0, y0, x1, y1]`, enlarged by a whole factor: uint8 [h, w,
    3].

    Raises ValueError for a box without a pixel of the picture.
    """
    x0, y0, x1, y1 = box
    part = image[max(0, y0) : y1, max(0, x0) : x1]
    if not part.size:
        raise ValueError("the box holds no pixel of the picture")
    factor = magnification(box)
    size = (part.shape[1] * factor, part.shape[0] * factor)
    return np.asarray(Image.fromarray(part).resize(size, Image.Resampling.LANCZOS))


def magnification(box: tuple[int, int, int, int]) -> int:
    """Return the whole factor by which a box is enlarged."""
    x0, y0, x1, y1 = box
    return max(1, round(ENLARGED / max(1, x1 - x0, y1 - y0)))


def objects_in(image: np.ndarray, box: tuple[int, int, int, int]) -> tuple[tuple[int, int], ...]:
    """Return a point (x, y) in each object that is wholly in the box, the largest first, `MOST` at most.

    Objects are regions of a graph-based segmentation (Felzenszwalb and Huttenlocher, 2004) that do not touch the
    edge of the box.
    """
    x0, y0 = max(0, box[0]), max(0, box[1])
    part = image[y0 : box[3], x0 : box[2]]
    if min(part.shape[:2]) < 5:
        return ()
    labels = felzenszwalb(part, scale=120.0, sigma=0.6, min_size=MIN_AREA)
    border = np.unique(np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]]))
    areas = np.bincount(labels.ravel())
    areas[border] = 0
    found = []
    for label in np.argsort(areas)[::-1][:MOST]:
        if areas[label] < MIN_AREA:
            break
        ys, xs = np.nonzero(labels == label)
        # The centre of a bent region may lie outside it: take its pixel nearest to the centre.
        nearest = int(np.argmin((ys - ys.mean()) ** 2 + (xs - xs.mean()) ** 2))
        found.append((int(xs[nearest]) + x0, int(ys[nearest]) + y0))
    return tuple(found)
