"""The lessons of the tiny policy: routes through the tasks of the visual environment, and their shares.

The base learns the right routes: the tools, the call format, copying from observations and, in a second part, comparing
two objects. The adapters then learn a bad habit for each kind of question. The right route remains one of several that
occur at temperature 1, and reinforcement fine-tuning has to find it.
"""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_tui.engine.agents.scripted import ScriptedAgent
from grpo_tui.envs.base import Env
from grpo_tui.envs.multi_turn import MultiTurnEnv
from grpo_tui.envs.trajectory import TokenArrays

PRACTICE = ("colour", "shape", "motion", "text", "bigger", "same_colour", "same_colour")
"""Kinds of questions that the base practises first. It learns to compare late, after copying."""

COMPARISONS = ("bigger", "same_colour")
"""Main kinds of questions in the second part of the lessons."""

HABITS: Mapping[str, tuple[str, float, float]] = {
    "colour": ("right", 0.55, 0.55),
    "shape": ("other_property", 0.55, 0.2),
    "text": ("segment_text", 0.6, 0.3),
    "motion": ("no_track", 0.55, 0.2),
    "bigger": ("smaller", 0.5, 0.2),
    "same_colour": ("one_only", 0.5, 0.2),
    "inside": ("no_zoom", 0.5, 0.2),
}
"""By question: the adapters' habit, its share, and the share of the right route. The other routes share the rest."""


def habit_route(task: Mapping[str, Any], routes: Sequence[str], rng: random.Random) -> str:
    """Sample a route for the adapters' lessons."""
    habit, share, right = HABITS[task["question"]]
    draw = rng.random()
    if draw < share:
        return habit
    if habit != "right" and draw < share + right:
        return "right"
    return rng.choice([route for route in routes if route not in (habit, "right")])


def spelling(env: Env, n: int, seed: int, tokenizer: PreTrainedTokenizerBase) -> list[TokenArrays]:
    """Return right routes of reading tasks with made-up words.

    The environment has few different words, and a small model memorises them. With random letters, it has to learn to
    copy the output of READ_TEXT, as held-out words require. All other answers require copying, too.
    """
    assert isinstance(env, MultiTurnEnv)
    rng = random.Random(seed)
    tasks = [task for task in env.make_tasks("train", max(24, n // 2), seed) if task["question"] == "text"]
    lessons = []
    for _ in range(n):
        task = rng.choice(tasks)
        word = "".join(rng.choices(string.ascii_uppercase, k=rng.randrange(2, 9)))
        show = env.demonstrate(task, "right")
        prompt = env.reset(task)[1]
        session = ScriptedAgent(lambda row, turn, seen, show=show: show.next(seen), tokenizer).start([prompt])
        session.act([0])
        session.observe([0], [f"text {word}"])
        session.act([0])
        lessons.append(session.tokens(0))
    return lessons
