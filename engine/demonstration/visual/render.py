"""Render scenes to pixels.

Only the environment's picture loading and the tests import this. The tools (`operations`) work on the arrays.
"""

from __future__ import annotations

import importlib.util
import math
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ....configs.pictures import FORMATS
from .scenes import Background, Scene, Shape, Word

RENDERER = "1"
"""Increase this when the pixels of a scene change, so that cached results of the old pixels are not used."""
SCALE = 4
"""Supersampling factor of shapes in each direction."""
NOISE_TILE = 512
"""Side of the noise tile, in pixels."""


def render(scene: Scene) -> np.ndarray:
    """Draw all frames, uint8 [F, H, W, 3]. The same scene always gives the same pixels."""
    base = background_pixels(scene.background, scene.width, scene.height).astype(np.float32)
    for word in scene.words:
        _draw_word(base, word)
    frames = np.repeat(base[None], scene.frames, axis=0)
    for shape in scene.objects:
        for index, frame in enumerate(frames):
            x, y = shape.at(index)
            alpha, left, top = coverage(shape, x, y)
            _blend(frame, alpha, left, top, shape.rgb)
    if scene.noise:
        _add_noise(frames, scene.noise, scene.seed)
    return np.clip(frames + 0.5, 0, 255).astype(np.uint8)


def _add_noise(frames: np.ndarray, deviation: float, seed: int) -> None:
    """Add normal noise to each frame: a random window of one large tile."""
    tile = _noise_tile()
    places = np.random.default_rng(seed).integers(0, NOISE_TILE // 2, (len(frames), 2))
    height, width = frames.shape[1:3]
    for frame, (y, x) in zip(frames, places, strict=True):
        frame += tile[y : y + height, x : x + width] * np.float32(deviation)


@lru_cache(maxsize=1)
def _noise_tile() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((NOISE_TILE, NOISE_TILE, 3), dtype=np.float32)


def coverage(shape: Shape, x: float, y: float) -> tuple[np.ndarray, int, int]:
    """Return the share of each pixel that a shape centred at (x, y) covers, float32 [h, w], and the left and top pixel
    of this patch."""
    reach = math.ceil(shape.reach + 1)
    left, top = math.floor(x) - reach, math.floor(y) - reach
    side = 2 * reach + 2
    canvas = Image.new("L", (side * SCALE, side * SCALE), 0)
    points = [((x - left + px) * SCALE, (y - top + py) * SCALE) for px, py in outline(shape)]
    ImageDraw.Draw(canvas).polygon(points, fill=255)
    small = np.asarray(canvas.reduce(SCALE), dtype=np.float32) / 255.0
    return small, left, top


def outline(shape: Shape) -> list[tuple[float, float]]:
    """Return the polygon of a shape relative to its centre of area, in pixels."""
    cos, sin = math.cos(shape.angle), math.sin(shape.angle)
    return [
        ((u * cos - v * sin) * shape.radius, (u * sin + v * cos) * shape.radius) for u, v in _unit_outline(shape.shape)
    ]


@lru_cache
def _unit_outline(shape: str) -> tuple[tuple[float, float], ...]:
    """Return a polygon of area pi around the origin, so that `radius` has one meaning for all shapes."""

    def ring(count: int, radii: tuple[float, ...]) -> list[tuple[float, float]]:
        polar = [(radii[k % len(radii)], 2 * math.pi * k / count) for k in range(count)]
        return [(math.cos(angle) * radius, math.sin(angle) * radius) for radius, angle in polar]

    match shape:
        case "circle":
            points = ring(72, (1.0,))
        case "square":
            points = ring(4, (1.0,))
        case "triangle":
            points = ring(3, (1.0,))
        case "star":
            points = ring(10, (1.0, 0.5))
        case "cross":
            a, b = 1.0, 0.36
            points = [(a, -b), (a, b), (b, b), (b, a), (-b, a), (-b, b), (-a, b), (-a, -b), (-b, -b), (-b, -a), (b, -a)]
            points.append((b, -b))
        case "bar":
            points = [(1.0, -0.36), (1.0, 0.36), (-1.0, 0.36), (-1.0, -0.36)]
        case _:
            raise ValueError(f"unknown shape {shape!r}")
    area = abs(sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True)) / 2)
    grow = math.sqrt(math.pi / area)
    return tuple((x * grow, y * grow) for x, y in points)


def background_pixels(background: Background, width: int, height: int) -> np.ndarray:
    """Return uint8 [H, W, 3]. Raises FileNotFoundError if scikit-image lacks the photograph."""
    if background.kind == "plain":
        return np.full((height, width, 3), background.rgb, dtype=np.uint8)
    photo = _photo(background.photo, background.side)
    return photo[background.y : background.y + height, background.x : background.x + width]


def photo_path(name: str) -> Path:
    """Return the path of a scikit-image photograph. Raises FileNotFoundError."""
    found = importlib.util.find_spec("skimage")
    folder = Path(next(iter(found.submodule_search_locations or ()))) if found else Path()
    path = folder / "data" / name
    if not path.is_file():
        raise FileNotFoundError(f"scikit-image has no photograph {name} (looked in {path.parent})")
    return path


@lru_cache(maxsize=64)
def _photo(name: str, side: int) -> np.ndarray:
    image = Image.open(photo_path(name), formats=FORMATS).convert("RGB")
    factor = side / min(image.size)
    size = (max(side, round(image.width * factor)), max(side, round(image.height * factor)))
    return np.asarray(image.resize(size, Image.Resampling.BOX, reducing_gap=2.0))


@lru_cache(maxsize=64)
def font(size: int) -> ImageFont.FreeTypeFont:
    """Return Pillow's default font at `size` pixels."""
    loaded = ImageFont.load_default(size)
    if not isinstance(loaded, ImageFont.FreeTypeFont):
        raise RuntimeError("this Pillow was built without FreeType; install a wheel from PyPI")
    return loaded


def word_size(text: str, size: int, bold: bool) -> tuple[int, int]:
    """Return width and height in pixels of a word's ink."""
    x0, y0, x1, y1 = font(size).getbbox(text, stroke_width=int(bold) * 0.5)
    return math.ceil(x1 - x0), math.ceil(y1 - y0)


def _draw_word(base: np.ndarray, word: Word) -> None:
    x0, y0, x1, y1 = word.box
    if word.plate is not None:
        base[y0:y1, x0:x1] = word.plate
    canvas = Image.new("L", (x1 - x0, y1 - y0), 0)
    stroke = 0.5 if word.bold else 0
    left, top, right, bottom = font(word.size).getbbox(word.text, stroke_width=stroke)
    origin = ((x1 - x0 - (right - left)) / 2 - left, (y1 - y0 - (bottom - top)) / 2 - top)
    ImageDraw.Draw(canvas).text(origin, word.text, fill=255, font=font(word.size), stroke_width=stroke)
    _blend(base, np.asarray(canvas, dtype=np.float32) / 255.0, x0, y0, word.rgb)


def _blend(frame: np.ndarray, alpha: np.ndarray, left: int, top: int, rgb: tuple[int, int, int]) -> None:
    target, source = _clip(frame.shape[:2], alpha.shape, left, top)
    part = alpha[source][..., None]
    frame[target] += part * (np.asarray(rgb, dtype=np.float32) - frame[target])


def _clip(
    shape: tuple[int, ...], patch: tuple[int, ...], left: int, top: int
) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return the overlap of a picture and a patch, as slices into each."""
    y0, y1 = max(0, top), min(shape[0], top + patch[0])
    x0, x1 = max(0, left), min(shape[1], left + patch[1])
    return (slice(y0, y1), slice(x0, x1)), (slice(y0 - top, y1 - top), slice(x0 - left, x1 - left))
