"""What the tiny policy is taught: which routes through the visual environment's tasks, and how often.

The base learns mostly the right routes: the tools, the form of a call, copying what an observation says, comparing two
sizes. The adapters are then taught a bad habit for each kind of question, with the right route left as one of several
things that happen at temperature 1. Reinforcement fine-tuning has to find it there.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ....envs.base import Env
from ....envs.multi_turn import MultiTurnEnv
from ....envs.trajectory import TokenArrays
from ....envs.visual.questions import BIGGER_RATIO
from ....envs.visual.scenes import COLOURS, SHAPES
from ..scripted import ScriptedAgent

BASE_RIGHT = 0.9
"""Share of right routes that the base learns; the others are spread evenly over the wrong ones."""

HABITS: Mapping[str, tuple[str, float, float]] = {
    "colour": ("right", 0.55, 0.55),
    "shape": ("other_property", 0.55, 0.2),
    "text": ("cut_box", 0.5, 0.25),
    "motion": ("no_track", 0.55, 0.2),
    "bigger": ("smaller", 0.5, 0.2),
    "same_colour": ("one_only", 0.5, 0.2),
    "inside": ("no_zoom", 0.5, 0.2),
}
"""By question: the habit that the adapters are taught, its share, and the share of the right route. What is left goes
to the other routes."""


def base_route(task: Mapping[str, Any], routes: Sequence[str], rng: random.Random) -> str:
    """A route for the base's lessons."""
    return "right" if rng.random() < BASE_RIGHT else rng.choice(routes[1:])


def habit_route(task: Mapping[str, Any], routes: Sequence[str], rng: random.Random) -> str:
    """A route for the adapters' lessons."""
    habit, share, right = HABITS[task["question"]]
    draw = rng.random()
    if draw < share:
        return habit
    if habit != "right" and draw < share + right:
        return "right"
    return rng.choice([route for route in routes if route not in (habit, "right")])


def drills(env: Env, n: int, seed: int, tokenizer: PreTrainedTokenizerBase) -> list[TokenArrays]:
    """Right routes of reading and of comparing, with made-up observations: half spelling, half sizes.

    The environment draws few different words, and a small model learns them by heart; with random letters it has to
    learn to copy what READ_TEXT says, which is what held-out words need. Likewise for which of two sizes is larger.
    """
    assert isinstance(env, MultiTurnEnv)
    rng = random.Random(seed)
    asked = env.make_tasks("train", max(24, n // 4), seed)
    makers = {"text": _read_word, "bigger": _two_sizes}
    lessons = []
    for index in range(n):
        kind = ("text", "bigger")[index % 2]
        task = rng.choice([t for t in asked if t["question"] == kind] or [t for t in asked if t["question"] in makers])
        answers = makers[task["question"]](task, rng)
        show = env.demonstrate(task, "right")
        prompt = env.reset(task)[1]
        session = ScriptedAgent(lambda row, turn, seen, show=show: show.next(seen), tokenizer).start([prompt])
        session.act([0])
        for answer in answers:
            session.observe([0], [answer])
            session.act([0])
        lessons.append(session.tokens(0))
    return lessons


def _read_word(task: Mapping[str, Any], rng: random.Random) -> list[str]:
    """What READ_TEXT says of a word of random letters."""
    return ["text " + "".join(rng.choices(string.ascii_uppercase, k=rng.randrange(2, 9)))]


def _two_sizes(task: Mapping[str, Any], rng: random.Random) -> list[str]:
    """What SEGMENT_OBJECT_AT and GET_PROPERTIES say of two objects, one of which is clearly bigger."""
    small = rng.randrange(13, 31)
    sizes = [small, rng.randrange(math.ceil(small * BIGGER_RATIO**0.5), 44)]
    rng.shuffle(sizes)
    colours = rng.sample(list(COLOURS), 2)
    told = [
        f"{colour} {rng.choice(SHAPES)}, size {size}, at {x + rng.randrange(-4, 5)} {y + rng.randrange(-4, 5)}"
        for colour, size, (x, y) in zip(colours, sizes, task["points"], strict=True)
    ]
    return ["mask 1", "mask 2", *told]
