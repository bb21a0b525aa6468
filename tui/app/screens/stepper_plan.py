"""Where the panes of the stepper go at a size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..widgets.frame import Box, Part, split

_IMAGE_ROOM = 16
"""Rows of the middle column under which no image is shown."""


@dataclass(frozen=True)
class ImageBox:
    """An image that wants a place: the rows that it takes at a width, and whether the person made it large."""

    rows_for: Callable[[int], int]
    large: bool


def stepper_boxes(width: int, height: int, body: str, image: ImageBox | None) -> list[Box]:
    """Three columns; under 100 cells the group becomes two lines on top; under 60 the reward goes below."""
    boxes: list[Box] = []
    if width >= 100:
        (gx, gw), (sx, sw), (rx, rw) = split(width, [Part(28, 0.4, 38), Part(44, 2.0), Part(36, 0.8, 56)])
        boxes += [Box("group", gx, 0, gw, height), Box("reward", rx, 0, rw, height)]
        top, middle = 0, height
    elif width >= 60:
        top = 3 if height >= 16 else 0
        if top:
            boxes.append(Box("group", 0, 0, width, top + 1))
        middle = height - top
        (sx, sw), (rx, rw) = split(width, [Part(30, 1.4), Part(36, 0.6, 42)])
        boxes.append(Box("reward", rx, top, rw, middle))
    else:
        sx, sw, top = 0, width, 0
        below = max(6, height // 3) if height >= 14 else 0
        if below:
            boxes.append(Box("reward", 0, height - below, width, below))
        middle = height - below + (1 if below else 0)
    if image is not None and middle >= _IMAGE_ROOM:
        rows = max(8, min(image.rows_for(sw - 2) + 2, int(middle * (0.68 if image.large else 0.5))))
        boxes.append(Box("image", sx, top + middle - rows, sw, rows))
        middle -= rows - 1
    boxes.append(Box(body, sx, top, sw, middle))
    return boxes
