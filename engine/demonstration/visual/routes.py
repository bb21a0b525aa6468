"""Demonstrations of drawn tasks: the right route, and plausible wrong ones.

The tiny policy is first taught mostly wrong routes, so that reinforcement learning has something real to find. A route
sees the prompt's facts and the observations, as an agent does.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from ....envs.calls import format_call
from .scenes import COLOURS, DIRECTIONS, SHAPES, TRAIN_WORDS

Steps = Generator[str, str, None]
"""Yields the text of a turn and receives the observation that answers it."""
Properties = tuple[str, str, int]
"""Colour, shape and size of an object."""

_POINTS = ("right", "guess", "skip_segment", "out_of_bounds", "read_shape", "other_property", "repeat", "no_answer")
ROUTES: dict[str, tuple[str, ...]] = {
    "colour": (*_POINTS, "track_still"),
    "shape": (*_POINTS, "track_still"),
    "motion": (*_POINTS, "no_track"),
    "bigger": (*_POINTS, "track_still", "one_only", "smaller"),
    "same_colour": (*_POINTS, "track_still", "one_only"),
    "text": ("right", "guess", "segment_text", "cut_box", "repeat", "no_answer"),
    "inside": ("right", "guess", "no_zoom", "read_shape", "repeat", "no_answer"),
}
"""The routes for each kind of question. `_walk` implements them."""


def routes_of(task: Mapping[str, object]) -> Sequence[str]:
    """Return the routes for a task's question, `right` first, or none if the task has no drawn scene."""
    return ROUTES.get(str(task.get("question")), ()) if "scene" in task else ()


def show(task: Mapping[str, object], route: str, seed: int = 0) -> RouteShow:
    """Demonstrate a route. Raises ValueError if the task's question does not have it."""
    routes = routes_of(task)
    if route not in routes:
        raise ValueError(f"no route {route!r} for {task.get('question')!r}, only {', '.join(routes) or 'none'}")
    return RouteShow(_walk(task, route, random.Random(f"{route} {seed}")))


class RouteShow:
    """A running route (a `Demonstrator`)."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._last = ""

    def next(self, observation: str | None) -> str:
        """Return the text of the next turn. At the end of the route, repeat the last one."""
        with contextlib.suppress(StopIteration):
            self._last = next(self._steps) if observation is None else self._steps.send(observation)
        return self._last


def guess(task: Mapping[str, Any], rng: random.Random) -> str:
    """Draw an answer of the right kind at random."""
    choices = {"shape": SHAPES, "motion": DIRECTIONS, "same_colour": ("yes", "no"), "text": TRAIN_WORDS}
    return rng.choice(choices.get(task["question"], tuple(COLOURS)))


# ---------------------------------------------------------------------------------------------------- walking


def _walk(task: Mapping[str, Any], route: str, rng: random.Random) -> Steps:
    kind, scene = task["question"], task["scene"]
    points, box = task.get("points", ()), task.get("box", ())
    match route:
        case "right":
            yield from _right(task)
        case "guess":
            yield _answer(guess(task, rng))
        case "skip_segment":  # a mask that does not exist
            yield _call("GET_PROPERTIES", mask=1)
            yield _answer(guess(task, rng))
        case "out_of_bounds":  # a coordinate outside the picture
            x, y = points[0]
            if rng.random() < 0.5:
                yield _segment((rng.randrange(scene["width"], 128), y))
            else:
                yield _segment((x, rng.randrange(scene["height"], 128)))
            yield _answer(guess(task, rng))
        case "track_still":  # a still has no motion
            observation = yield _segment(points[0])
            yield _call("TRACK_OBJECT", mask=_mask(observation))
            yield _answer(guess(task, rng))
        case "read_shape":  # an object has no text
            yield _call("READ_TEXT", box=list(box) if box else _box_about(points[0], scene))
            yield _answer(guess(task, rng))
        case "other_property":  # answers with a different property
            colour, shape, _ = yield from _look(points[0])
            yield _answer(colour if kind in ("shape", "motion") else shape)
        case "no_track":  # never tracks the motion
            yield from _look(points[0])
            yield _answer(guess(task, rng))
        case "one_only":  # looks only at the first of two objects
            colour, _, _ = yield from _look(points[0])
            yield _answer(colour if kind == "bigger" else rng.choice(("yes", "no")))
        case "smaller":  # compares the wrong way round
            (first, _, size), (second, _, other) = yield from _both(task)
            yield _answer(first if size < other else second)
        case "segment_text":  # treats a word as an object
            colour, _, _ = yield from _look(_centre(box))
            yield _answer(colour)
        case "cut_box":  # reads half of the box
            observation = yield _call("READ_TEXT", box=[box[0], box[1], _centre(box)[0], box[3]])
            yield _answer(observation.removeprefix("text "))
        case "no_zoom":  # segments the corner of the box
            yield from _look(box[:2])
            yield _answer(guess(task, rng))
        case "repeat":  # the right route with its first call made twice
            yield next(_right(task))
            yield from _right(task)
        case _:  # never answers
            looking = _call("READ_TEXT", box=list(box)) if box else _segment(points[0])
            while True:
                yield looking


def _right(task: Mapping[str, Any]) -> Steps:
    match task["question"]:
        case "motion":
            observation = yield _segment(task["points"][0])
            observation = yield _call("TRACK_OBJECT", mask=_mask(observation))
            yield _answer(observation.split(",")[0])
        case "bigger":
            (first, _, size), (second, _, other) = yield from _both(task)
            yield _answer(first if size > other else second)
        case "same_colour":
            (first, *_), (second, *_) = yield from _both(task)
            yield _answer("yes" if first == second else "no")
        case "text":
            observation = yield _call("READ_TEXT", box=list(task["box"]))
            yield _answer(observation.removeprefix("text "))
        case "inside":
            observation = yield _call("ZOOM_IN", box=list(task["box"]))
            numbers = [int(n) for n in re.findall(r"\d+", observation.partition(":")[2])]
            colour, _, _ = yield from _look(numbers[:2] if len(numbers) >= 2 else _centre(task["box"]))
            yield _answer(colour)
        case kind:  # colour or shape
            colour, shape, _ = yield from _look(task["points"][0])
            yield _answer(shape if kind == "shape" else colour)


def _look(point: Sequence[int]) -> Generator[str, str, Properties]:
    observation = yield _segment(point)
    observation = yield _call("GET_PROPERTIES", mask=_mask(observation))
    return _properties(observation)


def _both(task: Mapping[str, Any]) -> Generator[str, str, tuple[Properties, Properties]]:
    one = yield _segment(task["points"][0])
    other = yield _segment(task["points"][1])
    first = yield _call("GET_PROPERTIES", mask=_mask(one))
    second = yield _call("GET_PROPERTIES", mask=_mask(other))
    return _properties(first), _properties(second)


def _call(name: str, **arguments: object) -> str:
    return format_call(name, arguments)


def _segment(point: Sequence[int]) -> str:
    return format_call("SEGMENT_OBJECT_AT", {"x": point[0], "y": point[1]})


def _answer(text: str) -> str:
    return format_call("ANSWER", {"text": text})


def _mask(observation: str) -> int:
    found = re.fullmatch(r"mask (\d+)", observation)
    return int(found[1]) if found else 1


def _properties(observation: str) -> Properties:
    """Parse an observation. After an error, the object is unknown."""
    found = re.match(r"(\w+) (\w+), size (\d+)", observation)
    return (found[1], found[2], int(found[3])) if found else ("grey", "blob", 0)


def _centre(box: Sequence[int]) -> tuple[int, int]:
    return (box[0] + box[2]) // 2, (box[1] + box[3]) // 2


def _box_about(point: Sequence[int], scene: Mapping[str, Any]) -> list[int]:
    x, y = point
    return [max(0, x - 14), max(0, y - 10), min(scene["width"], x + 14), min(scene["height"], y + 10)]
