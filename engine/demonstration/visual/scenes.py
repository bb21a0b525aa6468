"""Scenes as data. `render` draws them. Tools see only the pixels.

A task's row stores the entire sampled scene, so a row always means the same picture.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .operations.properties import PROTOTYPES

SHAPES = ("circle", "square", "triangle", "star", "cross", "bar")
COLOURS = {name: PROTOTYPES[name] for name in ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")}
"""The colours of objects, as sRGB. Each object deviates by up to `COLOUR_JITTER` in each channel."""
COLOUR_JITTER = 10
SIDES = (96, 104, 112, 120)
"""Widths and heights in pixels. All are below 128, so a policy can still write a coordinate outside an image."""
DIRECTIONS = ("right", "left", "up", "down", "still")
TRAIN_PHOTOS = ("astronaut.png", "coffee.png", "grass.png", "brick.png", "rocket.jpg")
EVAL_PHOTOS = ("chelsea.png", "motorcycle_left.png", "gravel.png", "ihc.png", "hubble_deep_field.jpg")
"""Photographs from scikit-image. The two splits share none."""

_TRAIN = """
STOP EXIT OPEN TAXI HOTEL CAFE BUS PARK SALE MILK TEA BREAD FISH RICE SALT SOAP WOOL SILK GOLD IRON ROAD
BRIDGE RIVER LAKE HILL WOOD ROCK SAND SNOW RAIN WIND STORM NORTH SOUTH EAST WEST LEFT RIGHT START PAUSE PLAY
MENU HOME HELP NEWS MAIL CALL TEXT FILE EDIT VIEW COPY SAVE PRINT QUIET DANGER PRIVATE STAFF ONLY PUSH PULL
LIFT STAIRS TICKET TRAIN PLANE SHIP HARBOR MARKET BANK SCHOOL CHURCH TOWER GARDEN FOREST ISLAND DESERT VALLEY
ORANGE LEMON APPLE GRAPE MELON PEACH CHERRY ONION CARROT PEPPER
"""
_EVAL = """
ENTER CLOSED PUBLIC TRAM METRO FERRY BAKER BUTTER SUGAR HONEY COFFEE CREAM CLOUD THUNDER FROST SUMMER WINTER
SPRING AUTUMN PLUM PEAR MANGO GARLIC CELERY BASIL MUSEUM CASTLE STATION GATE DOOR WINDOW FLOOR PAINT BRUSH
PAPER PENCIL INK LETTER STAMP SEARCH UPLOAD DELETE CANCEL RESET
"""
TRAIN_WORDS = tuple(_TRAIN.split())
EVAL_WORDS = tuple(_EVAL.split())
"""The words to draw. The two splits share none."""


@dataclass(frozen=True)
class Shape:
    """One drawn object. Centre and radius in pixels (`radius`: of the circle of equal area), angle in radians, `dx` and
    `dy` in pixels per frame."""

    shape: str
    colour: str
    rgb: tuple[int, int, int]
    x: float
    y: float
    radius: float
    angle: float = 0.0
    dx: float = 0.0
    dy: float = 0.0

    def at(self, frame: int) -> tuple[float, float]:
        """Return the centre in a frame."""
        return self.x + self.dx * frame, self.y + self.dy * frame

    @property
    def reach(self) -> float:
        """Radius of a circle around the centre that contains nearly the whole shape."""
        return self.radius * REACH[self.shape]

    @property
    def area(self) -> float:
        return math.pi * self.radius**2


REACH = {"circle": 1.0, "square": 1.26, "triangle": 1.56, "star": 1.62, "cross": 1.33, "bar": 1.51}
"""Outer radius over the radius of the circle of equal area."""


@dataclass(frozen=True)
class Word:
    """A drawn word: its box `[x0, y0, x1, y1]` in pixels, the font size, and the plate behind it, if any."""

    text: str
    box: tuple[int, int, int, int]
    size: int
    rgb: tuple[int, int, int]
    plate: tuple[int, int, int] | None = None
    bold: bool = False


@dataclass(frozen=True)
class Background:
    """`plain`: one colour. `photo`: a crop of a photograph at (x, y), after scaling its shorter side to `side`."""

    kind: Literal["plain", "photo"]
    rgb: tuple[int, int, int] = (128, 128, 128)
    photo: str = ""
    x: int = 0
    y: int = 0
    side: int = 0


@dataclass(frozen=True)
class Scene:
    """A still (`frames == 1`) or a short video."""

    width: int
    height: int
    background: Background
    objects: tuple[Shape, ...] = ()
    words: tuple[Word, ...] = ()
    frames: int = 1
    noise: float = 0.0
    """Standard deviation of the camera noise, in grey levels of 255."""
    seed: int = 0
    """Seed of the noise."""

    def to_json(self) -> dict[str, object]:
        flat = {**vars(self), "background": dict(vars(self.background))}  # dataclasses.asdict takes six times as long
        return {**flat, **{name: tuple(dict(vars(part)) for part in flat[name]) for name in ("objects", "words")}}


@dataclass(frozen=True)
class SceneOptions:
    """The distribution of scenes. radii: minimum and maximum in pixels. photo_share: share of the scenes with a
    photograph as background."""

    colours: Sequence[str] = tuple(COLOURS)
    shapes: Sequence[str] = SHAPES
    radii: Sequence[float] = (8.0, 17.0)
    photo_share: float = 0.5
    split: Literal["train", "eval"] = "train"

    def __post_init__(self) -> None:
        for name, chosen, known in (("colours", self.colours, COLOURS), ("shapes", self.shapes, SHAPES)):
            unknown = [g for g in chosen if g not in known]
            if unknown or not chosen:
                raise ValueError(f"{name} must be some of {', '.join(known)}, not {list(chosen)}")
        if len(self.radii) != 2 or not 6 <= self.radii[0] <= self.radii[1] <= 22:
            raise ValueError(f"radii must be two numbers between 6 and 22 pixels, not {list(self.radii)}")
        if not 0 <= self.photo_share <= 1:
            raise ValueError(f"photo_share must be between 0 and 1, not {self.photo_share}")


def sample_background(rng: random.Random, width: int, height: int, options: SceneOptions) -> Background:
    """Sample a plain grey or pastel, or a crop from one of the split's photographs."""
    if rng.random() >= options.photo_share:
        level = rng.randrange(40, 236)
        tint = [max(0, min(255, level + rng.randrange(-12, 13))) for _ in range(3)]
        return Background("plain", (tint[0], tint[1], tint[2]))
    photo = rng.choice(TRAIN_PHOTOS if options.split == "train" else EVAL_PHOTOS)
    side = rng.choice((160, 192, 224, 256))
    return Background(
        "photo", photo=photo, x=rng.randrange(0, side - width), y=rng.randrange(0, side - height), side=side
    )


def sample_shape(rng: random.Random, options: SceneOptions, **fixed: Any) -> Shape:
    """Sample a shape at the origin."""
    colour = fixed.pop("colour", None) or rng.choice(list(options.colours))
    jitter = [max(0, min(255, c + rng.randrange(-COLOUR_JITTER, COLOUR_JITTER + 1))) for c in COLOURS[colour]]
    return Shape(
        shape=fixed.pop("shape", None) or rng.choice(list(options.shapes)),
        colour=colour,
        rgb=(jitter[0], jitter[1], jitter[2]),
        x=0.0,
        y=0.0,
        radius=fixed.pop("radius", None) or round(rng.uniform(*options.radii), 2),
        angle=round(rng.uniform(0, 2 * math.pi), 3),
        **fixed,
    )


def place(
    rng: random.Random, shape: Shape, scene: Scene, taken: Sequence[tuple[float, float, float, float]]
) -> Shape | None:
    """Place a shape inside the scene in all frames, clear of the `taken` boxes. Returns None without room."""
    reach = shape.reach + 2
    last = scene.frames - 1
    low_x, high_x = reach - min(0, shape.dx * last), scene.width - reach - max(0, shape.dx * last)
    low_y, high_y = reach - min(0, shape.dy * last), scene.height - reach - max(0, shape.dy * last)
    if low_x > high_x or low_y > high_y:
        return None
    for _ in range(30):
        x, y = round(rng.uniform(low_x, high_x), 2), round(rng.uniform(low_y, high_y), 2)
        box = swept(shape, scene.frames, start=(x, y))
        if not any(overlap(box, other) for other in taken):
            return replace(shape, x=x, y=y)
    return None


def swept(
    shape: Shape, frames: int, *, start: tuple[float, float] | None = None, margin: float = 3.0
) -> tuple[float, float, float, float]:
    """Return the box that contains a shape in all frames. start: its centre in the first one, if not its own."""
    (x0, y0), r = start or (shape.x, shape.y), shape.reach + margin
    x1, y1 = x0 + shape.dx * (frames - 1), y0 + shape.dy * (frames - 1)
    return min(x0, x1) - r, min(y0, y1) - r, max(x0, x1) + r, max(y0, y1) + r


def sample_motion(rng: random.Random, direction: str) -> tuple[float, float]:
    """Sample a velocity along `direction` in pixels per frame, with a little drift across it; zero for `still`."""
    if direction == "still":
        return 0.0, 0.0
    speed, drift = round(rng.uniform(3.0, 5.5), 2), round(rng.uniform(-0.5, 0.5), 2)
    speed = speed if direction in ("right", "down") else -speed
    return (speed, drift) if direction in ("right", "left") else (drift, speed)


def sample_word(rng: random.Random, options: SceneOptions) -> str:
    """Sample one of the split's words."""
    return rng.choice(TRAIN_WORDS if options.split == "train" else EVAL_WORDS)


def overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    """Return whether two boxes share a point."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
