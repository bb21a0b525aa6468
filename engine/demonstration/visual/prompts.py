"""The prompts of the tasks.

`terse` is for the tiny policy: it states the kind of picture, its size and the question in as few tokens as possible.
`full` asks in sentences, for models that first read an explanation of the tools (`Env.explain`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....envs.agent import Message
from ....envs.base import PromptStyle
from ....envs.content import Block, ImageBlock, Picture, TextBlock

TERSE = {
    "colour": "colour at {0}?",
    "shape": "shape at {0}?",
    "text": "text in {box}?",
    "motion": "motion at {0}?",
    "bigger": "colour of bigger, {0} or {1}?",
    "same_colour": "same colour, {0} and {1}?",
    "inside": "colour in {box}?",
}
FULL = {
    "colour": "What colour is the object at ({0})? Answer with one word.",
    "shape": "What shape is the object at ({0}): circle, square, triangle, star, cross or bar?",
    "text": "What does the text in the box [{box}] say?",
    "motion": "Which way does the object that is at ({0}) in the first frame move: right, left, up, down or still?",
    "bigger": "Of the two objects at ({0}) and ({1}), what is the colour of the bigger one?",
    "same_colour": "Do the two objects at ({0}) and ({1}) have the same colour? Answer yes or no.",
    "inside": "What colour is the one object inside the box [{box}]? Answer with one word.",
}


def make_messages(
    task: Mapping[str, Any],
    width: int,
    height: int,
    frames: int,
    style: PromptStyle,
    shown: Sequence[Picture] | None = None,
) -> list[Message]:
    """Return the first messages of a rollout. Raises KeyError for a task without a question.

    shown: pictures to put before the text, for a vision policy (None: any other policy).
    """
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
