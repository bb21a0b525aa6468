"""ZOOM_IN: enlarge a box and find the objects in it."""

from __future__ import annotations

import numpy as np
from PIL import Image
from skimage.segmentation import felzenszwalb

MIN_AREA = 24
"""Minimum area of an object, in pixels."""
MOST = 3
"""Maximum number of objects to report."""


def crop(image: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    """Crop `[x0, y0, x1, y1]` from a uint8 [H, W, 3] picture, enlarged by a whole factor: uint8 [h, w, 3].

    Raises ValueError for a box outside the picture.
    """
    x0, y0, x1, y1 = box
    part = image[max(0, y0) : y1, max(0, x0) : x1]
    if not part.size:
        raise ValueError("the box holds no pixel of the picture")
    factor = magnification(box)
    size = (part.shape[1] * factor, part.shape[0] * factor)
    return np.asarray(Image.fromarray(part).resize(size, Image.Resampling.LANCZOS))


def magnification(box: tuple[int, int, int, int]) -> int:
    """Return the whole factor that enlarges the longer side of a box to about 128 pixels."""
    x0, y0, x1, y1 = box
    return max(1, round(128 / max(1, x1 - x0, y1 - y0)))


def objects_in(image: np.ndarray, box: tuple[int, int, int, int]) -> tuple[tuple[int, int], ...]:
    """Return a point (x, y) in each object that is entirely in the box, largest first, at most `MOST`.

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
        # The centre of a concave region may be outside it, so take the region's pixel nearest to the centre.
        nearest = int(np.argmin((ys - ys.mean()) ** 2 + (xs - xs.mean()) ** 2))
        found.append((int(xs[nearest]) + x0, int(ys[nearest]) + y0))
    return tuple(found)
