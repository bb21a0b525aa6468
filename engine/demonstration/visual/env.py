"""`VisualEnv`: questions about pictures and short videos, answered with tools that look at the pixels."""

from __future__ import annotations

import contextlib
import math
import random
import re
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from cachetools import LRUCache, cached

from ....envs.agent import Message
from ....envs.base import Demonstrator, Picture, PromptStyle, Split, StepResult
from ....envs.calls import ToolCall
from ....envs.explain import explain_calls
from ....envs.multi_turn import MultiTurnEnv
from ....envs.tools import Argument, ToolSpec
from ....envs.trajectory import Overlay, StepContext
from .clips import Clip, Mask, clip_of_task
from .operations import ocr, properties, segment, track, zoom
from .own_images import read_tasks
from .questions import DEFAULT_QUESTIONS, QUESTIONS, make_messages, make_question
from .routes import routes_of, show
from .scenes import COLOURS, SHAPES, SceneOptions

T = TypeVar("T")
_PICTURES = frozenset({"image", "video"})
_MASK = Argument("mask", "integer", "id of a mask that SEGMENT_OBJECT_AT made", refers_to="mask")
_BOX = Argument("box", "box", "[x0, y0, x1, y1] in pixels")

KEPT_FRAMES = 4
"""Frames of a video to keep for the record."""
MARK = np.array([255, 0, 255], np.float32)
"""Magenta, a colour that scenes do not use."""
ARM = 3
"""Arm length of a cross, in pixels."""

TOOLS = (
    ToolSpec(
        "SEGMENT_OBJECT_AT",
        "Finds the object at a pixel (of the first frame) and makes a mask of it; says the mask's id.",
        (
            Argument("x", "integer", "pixels from the left", minimum=0, below="width"),
            Argument("y", "integer", "pixels from the top", minimum=0, below="height"),
        ),
        modality=_PICTURES,
        produces="mask",
    ),
    ToolSpec(
        "GET_PROPERTIES",
        "Says a mask's colour, shape, size (diameter of a disc of its area, in pixels) and centre.",
        (_MASK,),
        modality=_PICTURES,
    ),
    ToolSpec("READ_TEXT", "Reads the text in a box.", (_BOX,), modality=_PICTURES),
    ToolSpec(
        "TRACK_OBJECT",
        "Follows a masked object through a video; says which way it moves, and where it was.",
        (_MASK,),
        modality=frozenset({"video"}),
    ),
    ToolSpec(
        "ZOOM_IN",
        "Enlarges a box; says by how much, and at which pixels of the whole picture objects lie in it.",
        (_BOX,),
        modality=_PICTURES,
    ),
    ToolSpec("ANSWER", "Ends the task with the answer.", (Argument("text", "string", "the answer"),), final=True),
)


@dataclass
class VisualState:
    """The state of a rollout."""

    task: Mapping[str, Any]
    clip: Clip
    masks: list[Mask] = field(default_factory=list)


class ResultCache:
    """A least-recently-used cache of at most `max_bytes` of the tools' results, by picture content, operation and
    arguments: the rollouts of a task mostly make the same calls. Each result is computed once, even if two threads need
    it concurrently."""

    def __init__(self, max_bytes: int) -> None:
        entries: LRUCache[Hashable, object] = LRUCache(max_bytes, getsizeof=_size_of)
        remember = cached(entries, key=lambda *names: names[:3], condition=threading.Condition())
        self._kept = remember(lambda content, operation, arguments, compute: compute())

    def get(self, content: str, operation: str, arguments: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `operation`, from the cache or by `compute`. Exceptions propagate and are not cached."""
        return self._kept(content, operation, arguments, compute)


def _size_of(value: object) -> int:
    return int(getattr(value, "nbytes", 0)) + sys.getsizeof(value) + 200


class VisualEnv(MultiTurnEnv):
    """Tasks about drawn scenes (`make_tasks`), or about a user's own pictures.

    questions: the kinds of questions, from `QUESTIONS`. colours, shapes, radii, photo_share, noise: see `SceneOptions`.
    Change these for a distribution shift of the same tasks. prompt_style: see `MultiTurnEnv`. The tiny policy was
    trained with `terse`. images: a folder or JSONL of the user's pictures with questions and answers (`own_images`),
    instead of drawn scenes. max_side: scale the user's pictures down to this many pixels. cache_mib: memory for results
    and pixels. prefetch: run OCR for a trial's tasks on a thread while the policy writes its first turn.
    """

    name = "visual"
    tools = TOOLS
    modality = "image"

    def __init__(
        self,
        tokenizer: Any = None,
        *,
        questions: Sequence[str] = DEFAULT_QUESTIONS,
        colours: Sequence[str] = tuple(COLOURS),
        shapes: Sequence[str] = SHAPES,
        radii: Sequence[float] = (8.0, 17.0),
        photo_share: float = 0.5,
        noise: float = 2.0,
        prompt_style: PromptStyle | None = None,
        images: str | None = None,
        max_side: int = 512,
        cache_mib: float = 64.0,
        prefetch: bool = True,
        max_turns: int = 7,
        **config: Any,
    ) -> None:
        super().__init__(tokenizer, max_turns=max_turns, prompt_style=prompt_style, **config)
        unknown = [q for q in questions if q not in QUESTIONS]
        if unknown or not questions:
            raise ValueError(f"questions must be some of {', '.join(QUESTIONS)}, not {list(questions)}")
        if not 0 <= noise <= 20:
            raise ValueError(f"noise must be between 0 and 20 grey levels, not {noise}")
        if max_side < 16:
            raise ValueError(f"max_side must be at least 16 pixels, not {max_side}")
        self.questions = tuple(questions)
        self.noise = noise
        self.max_side = max_side
        self.options = {
            split: SceneOptions(tuple(colours), tuple(shapes), tuple(radii), photo_share, split)
            for split in ("train", "eval")
        }
        self.own_tasks = read_tasks(images) if images is not None else None
        self.cache = ResultCache(int(cache_mib * 2**20))
        self.prefetches = prefetch

    # ------------------------------------------------------------------------------------------------ tasks

    @classmethod
    def task_of_question(cls, question: str, images: Sequence[str]) -> dict[str, object] | None:
        """Return a task about one picture, or about several as the frames of a video."""
        if not images:
            return None
        return {"question": question, **({"image": images[0]} if len(images) == 1 else {"frames": list(images)})}

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, Any]]:
        """Return `n` drawn tasks, or at most `n` tasks of the user's pictures, shuffled by `seed`."""
        if self.own_tasks is not None:
            tasks = list(self.own_tasks[split])
            random.Random(f"{split} {seed}").shuffle(tasks)
            if not tasks:
                raise ValueError(f'your images have no row for {split}; add rows with "split": "{split}"')
            return tasks[:n]
        options = self.options[split]
        return [make_question(split, seed, index, self.questions, options, self.noise).to_task() for index in range(n)]

    def routes(self, task: Mapping[str, object]) -> Sequence[str]:
        return routes_of(task)

    def demonstrate(self, task: Mapping[str, object], route: str = "right", seed: int = 0) -> Demonstrator:
        return show(task, route, seed)

    def expected(self, task: Mapping[str, object]) -> str | None:
        answers = _answers(task)
        return answers[0] if answers else None

    def prefetch(self, tasks: Sequence[Mapping[str, object]]) -> None:
        """Run OCR for tasks about text. The recogniser releases the GIL while it works, and the other tools take only
        about a millisecond."""
        with_text = [task for task in tasks if isinstance(task, Mapping) and task.get("question") == "text"]
        if self.prefetches and with_text:
            threading.Thread(target=self._read_ahead, args=(with_text,), name="read-ahead").start()

    def _read_ahead(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        with contextlib.suppress(Exception):  # the agent's own call will raise the same error
            for task in tasks:
                self._text(clip_of_task(task, self.max_side), _box(task["box"]))

    # ------------------------------------------------------------------------------------------------ rollouts

    def reset(self, task: Mapping[str, object]) -> tuple[VisualState, list[Message]]:
        clip = clip_of_task(task, self.max_side)
        state = VisualState(task, clip)
        shown = self.images(state) if self.sees else None
        return state, make_messages(task, clip, self.style, shown)

    def explain(self) -> str:
        about = "Answer a question about a picture with tools. Coordinates are pixels from the top left."
        return explain_calls(self.tools, about)

    def context(self, state: VisualState) -> StepContext:
        clip = state.clip
        return StepContext(
            "video" if clip.frames > 1 else "image",
            {"width": clip.width, "height": clip.height, "frames": clip.frames},
            {"mask": tuple(str(n + 1) for n in range(len(state.masks)))} if state.masks else {},
        )

    def images(self, state: VisualState) -> tuple[Picture, ...]:
        """Return the still, or up to `KEPT_FRAMES` evenly spaced frames of a video, including the first and last."""
        # JPEG takes a tenth of the time of PNG, and nothing measures these pictures.
        return tuple(
            Picture(f"{state.clip.key}-{n}.jpg", partial(self._frame, state.clip, n))
            for n in _spread(state.clip.frames)
        )

    def step(self, state: VisualState, call: ToolCall) -> StepResult:
        arguments = call.arguments
        match call.name:
            case "SEGMENT_OBJECT_AT":
                return self._segment_step(state, arguments["x"], arguments["y"])
            case "GET_PROPERTIES":
                return self._properties_step(state, int(arguments["mask"]))
            case "READ_TEXT":
                text = self._text(state.clip, box := _box(arguments["box"]))
                return StepResult(f"text {text}" if text else "no text", overlay=Overlay(box=box, label=text))
            case "TRACK_OBJECT":
                return self._track_step(state, int(arguments["mask"]))
            case "ZOOM_IN":
                return self._zoom_step(state, _box(arguments["box"]))
            case _:
                answer, known = arguments["text"].strip(), _answers(state.task)
                if not known:
                    return StepResult("", done=True, answer=answer)
                correct = any(_normal(answer) == _normal(right) for right in known)
                return StepResult("correct" if correct else "wrong", float(correct), True, answer, correct)

    def _segment_step(self, state: VisualState, x: int, y: int) -> StepResult:
        clip = state.clip

        def compute() -> Mask | None:
            mask = segment.segment_at(self._frame(clip, 0), x, y)
            return None if mask is None else Mask.of(mask)

        mask = self.cache.get(clip.key, "SEGMENT_OBJECT_AT", (x, y), compute)
        if mask is None:
            problem = f"no object at {x} {y}"
            return StepResult(f"error: {problem}", overlay=Overlay(point=(x, y)), error=problem)
        number = next((n for n, known in enumerate(state.masks, 1) if known.key == mask.key), None)
        if number is None:
            state.masks.append(mask)
            number = len(state.masks)
        name = f"{clip.key}-with-{mask.key}.png"
        drawn = Picture(name, lambda: with_mask(self._frame(clip, 0), mask.array))
        return StepResult(
            f"mask {number}",
            produced={"mask": (str(number),)},
            overlay=Overlay(point=(x, y), label=f"mask {number}"),
            mask=_mask_picture(mask),
            images=(drawn,) if self.sees else (),
        )

    def _properties_step(self, state: VisualState, number: int) -> StepResult:
        clip, mask = state.clip, state.masks[number - 1]
        found = self.cache.get(
            clip.key, "GET_PROPERTIES", mask.key, lambda: properties.properties_of(self._frame(clip, 0), mask.array)
        )
        size = round(2 * (found.area / np.pi) ** 0.5)
        text = f"{found.colour} {found.shape}, size {size}, at {round(found.x)} {round(found.y)}"
        overlay = Overlay(label=f"{found.colour} {found.shape}", point=(found.x, found.y))
        return StepResult(text, overlay=overlay, mask=_mask_picture(mask))

    def _track_step(self, state: VisualState, number: int) -> StepResult:
        clip, mask = state.clip, state.masks[number - 1]
        found = self.cache.get(
            clip.key, "TRACK_OBJECT", mask.key, lambda: track.track_object(self._frames(clip), mask.array)
        )
        shown = found.positions if self.style == "full" else (found.positions[0], found.positions[-1])
        places = " to ".join(f"{round(x)} {round(y)}" for x, y in shown)
        overlay = Overlay(path=found.positions, label=found.direction)

        def drawn(index: int) -> np.ndarray:
            """Draw a frame with a cross at the object."""
            return with_cross(self._frame(clip, index), *found.positions[index])

        name, kept = f"{clip.key}-track-{mask.key}", _spread(len(found.positions)) if self.sees else []
        images = tuple(Picture(f"{name}-{n}.png", partial(drawn, n)) for n in kept)
        return StepResult(f"{found.direction}, {places}", overlay=overlay, mask=_mask_picture(mask), images=images)

    def _zoom_step(self, state: VisualState, box: tuple[int, int, int, int]) -> StepResult:
        clip = state.clip
        points = self.cache.get(clip.key, "ZOOM_IN", box, lambda: zoom.objects_in(self._frame(clip, 0), box))
        places = ", ".join(f"{x} {y}" for x, y in points)
        text = f"zoom {zoom.magnification(box)}: " + (f"objects at {places}" if points else "no objects")
        name = f"{clip.key}-zoom-{'-'.join(map(str, box))}.jpg"
        picture = Picture(name, lambda: zoom.crop(self._frame(clip, 0), box))
        return StepResult(text, images=(picture,), overlay=Overlay(box=box))

    # ------------------------------------------------------------------------------------------------ results

    def _frames(self, clip: Clip) -> np.ndarray:
        return self.cache.get(clip.key, "pixels", (), clip.load)

    def _frame(self, clip: Clip, index: int) -> np.ndarray:
        return self._frames(clip)[index]

    def _text(self, clip: Clip, box: tuple[int, int, int, int]) -> str:
        return self.cache.get(clip.key, "READ_TEXT", box, lambda: ocr.read_text(self._frame(clip, 0), box))


def _mask_picture(mask: Mask) -> Picture:
    return Picture(f"mask-{mask.key}", lambda: mask.array.astype(np.uint8) * 255)


def _spread(frames: int) -> list[int]:
    """Return up to `KEPT_FRAMES` evenly spaced frame indices, including the first and the last."""
    count = min(frames, KEPT_FRAMES)
    return sorted({round(n * (frames - 1) / max(1, count - 1)) for n in range(count)})


def _box(values: Sequence[float]) -> tuple[int, int, int, int]:
    """Round a box to whole pixels. A box that would become empty gets the pixel that contains it."""
    (x0, x1), (y0, y1) = (
        (round(low), round(high)) if round(low) < round(high) else (math.floor(low), math.floor(low) + 1)
        for low, high in (values[::2], values[1::2])
    )
    return x0, y0, x1, y1


def _answers(task: Mapping[str, object]) -> list[str]:
    answer = task.get("answer")
    return [str(a) for a in answer] if isinstance(answer, (list, tuple)) else [] if answer is None else [str(answer)]


def _normal(text: str) -> str:
    """Normalise an answer: ignore case, spaces and a full stop."""
    return re.sub(r"\s+", " ", text).strip().rstrip(".").casefold()


def with_mask(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Draw a bool [H, W] mask on a uint8 [H, W, 3] picture, with a tinted inside and an opaque edge."""
    inside = mask.copy()
    inside[1:-1, 1:-1] &= mask[:-2, 1:-1] & mask[2:, 1:-1] & mask[1:-1, :-2] & mask[1:-1, 2:]
    share = np.where(mask & ~inside, 1.0, np.where(mask, 0.35, 0.0))[..., None].astype(np.float32)
    return (image + share * (MARK - image) + 0.5).astype(np.uint8)


def with_cross(image: np.ndarray, x: float, y: float) -> np.ndarray:
    """Draw a cross at a pixel of a uint8 [H, W, 3] picture, clipped to the picture."""
    drawn = image.copy()
    height, width = image.shape[:2]
    column, row = round(x), round(y)
    if 0 <= row < height:
        drawn[row, max(0, column - ARM) : max(0, column + ARM + 1)] = MARK
    if 0 <= column < width:
        drawn[max(0, row - ARM) : max(0, row + ARM + 1), column] = MARK
    return drawn
