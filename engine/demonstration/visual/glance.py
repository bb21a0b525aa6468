"""`GlanceEnv`: answer questions about a small picture in one turn, without tools.

It is for vision policies, and the tiny vision policy trains on it. Pictures are 48 pixels wide, so that each takes nine
tokens.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ....envs.agent import Message
from ....envs.base import Demonstrator, FixedTurns, Split, StepResult
from ....envs.calls import ToolCall
from ....envs.content import ImageBlock, Picture, TextBlock
from ....envs.multi_turn import MultiTurnEnv
from ....envs.seeds import split_of
from ....envs.trajectory import StepContext
from .clips import clip_of_task
from .scenes import Background, Scene, SceneOptions, sample_shape

SIDE = 48
"""Width and height of a picture in pixels."""
QUESTIONS = ("colour", "count")
COLOURS = ("red", "yellow", "green", "cyan", "blue", "purple")
SHAPES = ("circle", "square", "triangle", "cross")
COUNTS = (2, 3)
"""Possible numbers of shapes in a picture."""
ASKED = {"colour": "colour on the {of}?", "count": "how many shapes?", "caption": "what is there?"}
PLACES = {2: ("left", "right"), 3: ("left", "middle", "right")}
"""Names of a picture's shapes from left to right, by the number of shapes."""
APART = 7.0
"""Minimum horizontal distance in pixels between the centres of two shapes."""


class GlanceEnv(MultiTurnEnv):
    """Tasks `{"question": …, "of": …, "answer": …, "scene": …}` about drawn scenes of two or three shapes.

    questions: the kinds of questions, from `QUESTIONS` (`caption` is for SFT). blank: replace each picture with a grey
    one, to measure the success of guessing.
    """

    name = "glance"
    modality = "image"
    needs_vision = True

    def __init__(
        self, tokenizer: object = None, *, questions: Sequence[str] = QUESTIONS, blank: bool = False, **config: object
    ) -> None:
        super().__init__(tokenizer, **{"max_turns": 1, "prompt_style": "terse", **config})
        unknown = [q for q in questions if q not in ASKED]
        if unknown or not questions:
            raise ValueError(f"questions must be some of {', '.join(ASKED)}, not {list(questions)}")
        self.questions = tuple(questions)
        self.blank = blank

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """Return `n` tasks, cycling through the kinds of questions. No scene is in both splits."""
        return [make_task(split, seed, i, self.questions[i % len(self.questions)]) for i in range(n)]

    def reset(self, task: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Message]]:
        (picture,) = self.images(task)
        if self.blank:
            picture = Picture("blank.png", lambda: np.full((SIDE, SIDE, 3), 128, np.uint8))
        question = ASKED[task["question"]].format(of=task.get("of", ""))
        content = [ImageBlock(type="image", image=picture), TextBlock(type="text", text=question)]
        return task, [Message(role="user", content=content)]

    def step(self, state: Mapping[str, object], call: ToolCall) -> StepResult:
        answer = str(call.arguments["text"])
        correct = answer.strip().lower() == str(state["answer"])
        return StepResult("", float(correct), True, answer, correct)

    def images(self, state: Mapping[str, object]) -> tuple[Picture, ...]:
        """Return the picture, even if the policy gets a blank one."""
        clip = clip_of_task(state, SIDE)
        return (Picture(f"{clip.key}.png", lambda: clip.load()[0]),)

    def context(self, state: Mapping[str, object]) -> StepContext:
        return StepContext("image", {"width": SIDE, "height": SIDE})

    def routes(self, task: Mapping[str, object]) -> Sequence[str]:
        """Return `right`, `neighbour` (of another shape in the picture, or a wrong count) and `guess` (of neither)."""
        return ("right",) if task["question"] == "caption" else ("right", "neighbour", "guess")

    def demonstrate(self, task: Mapping[str, object], route: str = "right", seed: int = 0) -> Demonstrator:
        return FixedTurns(_answer_of(task, route, random.Random(f"{route} {seed} {json.dumps(task, sort_keys=True)}")))


def make_task(split: Split, seed: int, index: int, question: str) -> dict[str, object]:
    """Generate task number `index` of a split, deterministically."""
    rng = random.Random(f"glance {split} {seed} {index}")
    while True:
        scene = _scene(rng)
        content = json.dumps(scene.to_json(), sort_keys=True)
        if split_of(content) == split:
            break
    colours = [shape.colour for shape in scene.objects]
    places = PLACES[len(colours)]
    one = rng.randrange(len(colours))
    task: dict[str, object] = {"question": question, "scene": json.loads(content)}
    if question == "colour":
        return task | {"of": places[one], "answer": colours[one]}
    return task | {"answer": str(len(colours)) if question == "count" else ", ".join(colours)}


def _scene(rng: random.Random) -> Scene:
    """Sample two or three shapes of different colours and forms, from left to right on a plain background."""
    options = SceneOptions(COLOURS, SHAPES, radii=(6.0, 7.0), photo_share=0.0)
    level = rng.randrange(200, 240)
    scene = Scene(SIDE, SIDE, Background("plain", (level, level, level)), noise=2.0, seed=rng.randrange(2**31))
    count = rng.choice(COUNTS)
    kinds = zip(rng.sample(SHAPES, count), rng.sample(COLOURS, count), strict=True)
    shapes = [replace(sample_shape(rng, options, shape=s, colour=c), angle=0.0) for s, c in kinds]
    while True:  # retry with the same shapes until they fit, so that all shapes are equally frequent
        places = [tuple(round(rng.uniform(s.reach + 1, SIDE - s.reach - 1), 2) for _ in "xy") for s in shapes]
        places.sort()
        near = any(q[0] - p[0] < APART for p, q in itertools.pairwise(places))
        pairs = itertools.combinations(zip(shapes, places, strict=True), 2)
        if not near and all(math.dist(p, q) > a.reach + b.reach + 1 for (a, p), (b, q) in pairs):
            return replace(scene, objects=tuple(replace(s, x=x, y=y) for s, (x, y) in zip(shapes, places, strict=True)))


def _answer_of(task: Mapping[str, Any], route: str, rng: random.Random) -> str:
    right, objects = str(task["answer"]), task["scene"]["objects"]
    if route == "right":
        return right
    if task["question"] == "count":
        return str(sum(COUNTS) - int(right)) if route == "neighbour" else str(rng.choice((1, 4)))
    others = [o["colour"] for o in objects] if route == "neighbour" else COLOURS
    return rng.choice([other for other in others if other != right])
