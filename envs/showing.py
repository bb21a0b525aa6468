"""What a policy that sees is shown in a trial, and what of it the record keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .agent import AgentSession, ShownImage
from .calls import clean_text
from .content import Content, Picture, checked_content
from .trajectory import SeenImage, Trajectory


def cleaned(content: object) -> Content:
    """The content of a message, if it is sound, without what no tokenizer takes. Raises TypeError."""
    checked = checked_content(content)
    if isinstance(checked, str):
        return clean_text(checked)
    return [{**b, "text": clean_text(b["text"])} if b["type"] == "text" else b for b in checked]


def loaded(picture: Picture) -> Picture:
    """The same, with its pixels made: here an author's code may raise or hang, later it must not."""
    pixels = picture.load()
    return Picture(picture.name, lambda: pixels)


def shown_in(session: AgentSession, row: int) -> Sequence[ShownImage]:
    """See `SeeingSession.shown`; nothing in a session of an agent that does not see."""
    shown: Callable[[int], Sequence[ShownImage]] | None = getattr(session, "shown", None)
    return () if shown is None else shown(row)


def with_seen(trajectory: Trajectory, prompt: Sequence[str | None], shown: Sequence[ShownImage]) -> Trajectory:
    """The trajectory with what the policy was shown.

    prompt: files of the prompt's pictures (None: not kept). shown: see `SeeingSession.shown`.
    """
    begun = [image for image in shown if image.turn < 0]
    steps = list(trajectory.steps)
    for index, step in enumerate(steps):
        seen = [image for image in shown if image.turn == index]
        kept = step.images if len(step.images) == len(seen) else [None] * len(seen)
        steps[index] = replace(step, seen=_noted(seen, kept)) if seen else step
    return replace(trajectory, steps=tuple(steps), seen=_noted(begun, prompt[: len(begun)]))


def _noted(shown: Sequence[ShownImage], paths: Sequence[str | None]) -> tuple[SeenImage, ...]:
    sized = zip(shown, paths, strict=True)
    return tuple(SeenImage(width=s.size[0], height=s.size[1], tokens=s.tokens, path=path) for s, path in sized)
