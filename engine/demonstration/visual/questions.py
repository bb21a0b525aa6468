"""Tasks about scenes: the question, the right answer, the location that the question mentions, and the prompt.

The answer comes from the scene's data. The agent gets only the question and the pixels.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ....envs.agent import Message
from ....envs.base import PromptStyle, Split
from ....envs.content import Block, ImageBlock, Picture, TextBlock
from ....envs.seeds import split_of
from . import render
from .clips import Clip
from .operations.segment import lengths, opponent
from .scenes import (
    DIRECTIONS,
    SIDES,
    Scene,
    SceneOptions,
    Shape,
    Word,
    overlap,
    place,
    sample_background,
    sample_motion,
    sample_shape,
    sample_word,
    swept,
)

LEGIBLE = 55.0
"""Minimum colour distance (of `opponent`) between an object and nearly all its surroundings."""


@dataclass(frozen=True)
class Question:
    """A question. `points` and `box` are the locations in its text."""

    kind: str
    answer: str
    scene: Scene
    points: tuple[tuple[int, int], ...] = ()
    box: tuple[int, int, int, int] | None = None

    def to_task(self) -> dict[str, object]:
        task = {"question": self.kind, "answer": self.answer, "points": self.points, "box": self.box}
        fields = {name: value for name, value in task.items() if value}
        # Convert through JSON, so that a row is the same before and after it was in a file.
        return json.loads(json.dumps({**fields, "scene": self.scene.to_json()}))


def make_question(
    split: Split, seed: int, index: int, kinds: Sequence[str], options: SceneOptions, noise: float = 2.0
) -> Question:
    """Generate question number `index` of a split, deterministically.

    The hash of the prompt decides its split, so no prompt is in both. Raises ValueError if the options allow no
    question.
    """
    rng = random.Random(f"{split} {seed} {index}")
    kind = kinds[rng.randrange(len(kinds))]
    for _ in range(2000):
        width, height = rng.choice(SIDES), rng.choice(SIDES)
        scene = Scene(
            width,
            height,
            sample_background(rng, width, height, options),
            frames=rng.randrange(5, 9) if kind == "motion" else 1,
            noise=noise,
            seed=rng.randrange(2**31),
        )
        with suppress(NoQuestion):
            question = QUESTIONS[kind](rng, scene, options)
            prompt = (question.kind, width, height, scene.frames, question.points, question.box)
            if split_of(repr(prompt)) == split and is_legible(question.scene):
                return question
    raise ValueError(f"found no scene for the question {kind!r} with these colours, shapes and radii")


def is_legible(scene: Scene) -> bool:
    """Return whether every object differs in colour from the background at its edge, in every frame."""
    if scene.background.kind == "plain":
        background = np.array(scene.background.rgb, dtype=np.uint8)
        return all(
            lengths(opponent(background) - opponent(np.array(s.rgb, dtype=np.uint8))) >= LEGIBLE for s in scene.objects
        )
    colours = opponent(render.background_pixels(scene.background, scene.width, scene.height))
    return all(_stands_out(shape, colours, scene.frames) for shape in scene.objects)


def _stands_out(shape: Shape, background: np.ndarray, frames: int) -> bool:
    colour = opponent(np.array(shape.rgb, dtype=np.uint8))
    outline = np.array(render.outline(shape))
    outlines = [outline * grow + shape.at(frame) for frame in range(0, frames, 2) for grow in (1.0, 1.2)]
    x, y = np.moveaxis(np.rint(outlines).astype(int), -1, 0)
    pixels = background[y.clip(0, background.shape[0] - 1), x.clip(0, background.shape[1] - 1)]
    return bool((np.percentile(lengths(pixels - colour), 10, axis=1) >= LEGIBLE).all())


# ---------------------------------------------------------------------------------------------------- kinds


class NoQuestion(Exception):
    """A sampled scene does not suit the question, so another one is sampled."""


def _fill(rng: random.Random, scene: Scene, options: SceneOptions, shapes: Sequence[Shape]) -> Scene:
    """Place these shapes and one or two others in the scene. Raises NoQuestion if there is no room."""
    objects: list[Shape] = []
    taken: list[tuple[float, float, float, float]] = [w.box for w in scene.words]
    extra = [sample_shape(rng, options) for _ in range(rng.randrange(1, 3) if len(shapes) < 2 else rng.randrange(2))]
    for number, shape in enumerate([*shapes, *extra]):
        placed = place(rng, shape, scene, taken)
        if placed is None:
            if number < len(shapes):
                raise NoQuestion
            continue
        objects.append(placed)
        taken.append(swept(placed, scene.frames))
    return replace(scene, objects=tuple(objects))


def _point_in(rng: random.Random, shape: Shape) -> tuple[int, int]:
    """Sample a pixel well inside a shape in the first frame. Pixel (i, j) covers i..i+1 and j..j+1."""
    reach = shape.radius * 0.25
    return int(shape.x + rng.uniform(-reach, reach)), int(shape.y + rng.uniform(-reach, reach))


def _property(kind: str, rng: random.Random, scene: Scene, options: SceneOptions) -> Question:
    filled = _fill(rng, scene, options, [sample_shape(rng, options)])
    target = filled.objects[0]
    return Question(kind, getattr(target, kind), filled, (_point_in(rng, target),))


def _motion(rng: random.Random, scene: Scene, options: SceneOptions) -> Question:
    direction = rng.choice(DIRECTIONS)
    small = (options.radii[0], min(options.radii[1], 12.0))
    modest = replace(options, radii=(min(small), max(small)))
    motions = sample_motion(rng, direction), sample_motion(rng, rng.choice(DIRECTIONS))
    filled = _fill(rng, scene, modest, [sample_shape(rng, modest, dx=dx, dy=dy) for dx, dy in motions])
    return Question("motion", direction, filled, (_point_in(rng, filled.objects[0]),))


def _bigger(rng: random.Random, scene: Scene, options: SceneOptions) -> Question:
    if len(set(options.colours)) < 2:
        raise NoQuestion
    first, second = rng.sample(list(options.colours), 2)
    one, other = sample_shape(rng, options, colour=first), sample_shape(rng, options, colour=second)
    if max(one.area, other.area) < 1.6 * min(one.area, other.area):
        raise NoQuestion
    return _pair("bigger", (one if one.area > other.area else other).colour, rng, scene, options, [one, other])


def _same_colour(rng: random.Random, scene: Scene, options: SceneOptions) -> Question:
    one = sample_shape(rng, options)
    others = [c for c in options.colours if c != one.colour]
    same = rng.random() < 0.5
    if not same and not others:
        raise NoQuestion
    other = sample_shape(rng, options, colour=one.colour if same else rng.choice(others))
    return _pair("same_colour", "yes" if same else "no", rng, scene, options, [one, other])


def _pair(
    kind: str, answer: str, rng: random.Random, scene: Scene, options: SceneOptions, shapes: Sequence[Shape]
) -> Question:
    filled = _fill(rng, scene, options, shapes)
    return Question(kind, answer, filled, tuple(_point_in(rng, shape) for shape in filled.objects[:2]))


def _text(rng: random.Random, scene: Scene, options: SceneOptions) -> Question:
    text, size, bold = sample_word(rng, options), rng.randrange(16, 21), rng.random() < 0.6
    width, height = render.word_size(text, size, bold)
    width, height = width + rng.randrange(4, 9), height + rng.randrange(4, 9)
    if width > scene.width - 2 or height > scene.height - 2:
        raise NoQuestion
    x, y = rng.randrange(1, scene.width - width), rng.randrange(1, scene.height - height)
    box = (x, y, x + width, y + height)
    light, dark = (244, 244, 240), (20, 20, 24)
    behind = render.background_pixels(scene.background, scene.width, scene.height)[y : y + height, x : x + width]
    grey = behind.astype(np.float32).mean(-1)
    ink = light if float(grey.mean()) < 128 else dark
    # without a plate, nearly all of the background must differ enough from the word
    readable = np.percentile(np.abs(grey - ink[0]), 5) >= 90 and float(grey.std()) < 24
    plate = None
    if not readable or rng.random() < 0.4:
        plate, ink = (light, dark) if rng.random() < 0.6 else (dark, light)
    with_word = replace(scene, words=(Word(text, box, size, ink, plate, bold),))
    filled = _fill(rng, with_word, options, [sample_shape(rng, options)])
    return Question("text", text, filled, box=box)


def _inside(rng: random.Random, scene: Scene, options: SceneOptions) -> Question:
    """Ask for the colour of the only object in a box. Its location is not given, so the agent must zoom in first."""
    filled = _fill(rng, scene, options, [sample_shape(rng, options)])
    target = filled.objects[0]
    x0, y0, x1, y1 = swept(target, 1, margin=2.0)
    box = (
        max(0, int(x0) - rng.randrange(2, 8)),
        max(0, int(y0) - rng.randrange(2, 8)),
        min(scene.width, int(x1) + rng.randrange(2, 8)),
        min(scene.height, int(y1) + rng.randrange(2, 8)),
    )
    if any(overlap(swept(o, 1), box) for o in filled.objects[1:]):
        raise NoQuestion
    return Question("inside", target.colour, filled, box=box)


QUESTIONS: Mapping[str, Callable[[random.Random, Scene, SceneOptions], Question]] = {
    "colour": partial(_property, "colour"),
    "shape": partial(_property, "shape"),
    "text": _text,
    "motion": _motion,
    "bigger": _bigger,
    "same_colour": _same_colour,
    "inside": _inside,
}
DEFAULT_QUESTIONS = ("colour", "shape", "text", "motion", "bigger", "same_colour")


# ---------------------------------------------------------------------------------------------------- prompts

TERSE = {
    "colour": "colour at {0}?",
    "shape": "shape at {0}?",
    "text": "text in {box}?",
    "motion": "motion at {0}?",
    "bigger": "colour of bigger, {0} or {1}?",
    "same_colour": "same colour, {0} and {1}?",
    "inside": "colour in {box}?",
}
"""For the tiny policy: as few tokens as possible."""
FULL = {
    "colour": "What colour is the object at ({0})? Answer with one word.",
    "shape": "What shape is the object at ({0}): circle, square, triangle, star, cross or bar?",
    "text": "What does the text in the box [{box}] say?",
    "motion": "Which way does the object that is at ({0}) in the first frame move: right, left, up, down or still?",
    "bigger": "Of the two objects at ({0}) and ({1}), what is the colour of the bigger one?",
    "same_colour": "Do the two objects at ({0}) and ({1}) have the same colour? Answer yes or no.",
    "inside": "What colour is the one object inside the box [{box}]? Answer with one word.",
}
"""For models that first read an explanation of the tools (`Env.explain`)."""


def make_messages(
    task: Mapping[str, Any], clip: Clip, style: PromptStyle, shown: Sequence[Picture] | None
) -> list[Message]:
    """Return the first messages of a rollout. Raises KeyError for a task without a question.

    shown: pictures to put before the text, for a vision policy (None: any other policy).
    """
    width, height, frames = clip.width, clip.height, clip.frames
    kind = "video" if frames > 1 else "image"
    question = str(task["question"])
    if question in TERSE and ("points" in task or "box" in task):
        join = " " if style == "terse" else ", "
        points = [join.join(str(int(v)) for v in p) for p in task.get("points", ())]
        box = join.join(str(int(v)) for v in task.get("box", ()))
        question = (TERSE if style == "terse" else FULL)[question].format(*points, box=box)
    size = f"{width} x {height} pixels" + (f", {frames} frames" if frames > 1 else "")
    if style == "terse":
        text = f"{kind} {width} {height}. {question}"
    elif shown is None:
        text = f"You cannot see the {kind} ({size}); use the tools on it.\n{question}"
    else:
        some = f" Of its frames you see {len(shown)}." if frames > len(shown) else ""
        text = f"This is the {kind} ({size}).{some} Use the tools on it to be sure.\n{question}"
    if shown is None:
        return [{"role": "user", "content": text}]
    blocks: list[Block] = [ImageBlock(type="image", image=picture) for picture in shown]
    return [{"role": "user", "content": [*blocks, TextBlock(type="text", text=text)]}]
