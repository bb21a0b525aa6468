"""The pictures of a trial: for the policy, and for people in the record."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .agent import Message, ShownImage
from .base import ImageStore, Picture, StepResult
from .calls import clean_text
from .content import Content, checked_content, pictures_of
from .trajectory import Overlay, SeenImage, Trajectory

logger = logging.getLogger(__name__)

REMEMBERED = 100_000
"""Number of saved pictures to remember, so that a picture shared by a group is saved once."""


@dataclass
class KeptPictures:
    """Saves pictures to `store`, if there is one."""

    store: ImageStore | None = None
    _saved: dict[str, str] = field(default_factory=dict)  # name of a picture → its path

    def save(self, picture: Picture) -> str | None:
        """Save a picture once and return its path. A failure loses the picture but does not stop the run."""
        if self.store is None:
            return None
        path = self._saved.get(picture.name)
        if path is None:
            try:
                path = self.store.save_image(picture.load(), picture.name)
            except Exception:
                logger.warning("could not save the image %s", picture.name, exc_info=True)
                return None
            if len(self._saved) > REMEMBERED:
                self._saved.clear()
            self._saved[picture.name] = path
        return path

    def save_all(self, pictures: tuple[Picture, ...]) -> tuple[str, ...]:
        return tuple(path for path in map(self.save, pictures) if path)

    def of_answer(self, result: StepResult, begun_with: tuple[str, ...]) -> tuple[tuple[str, ...], Overlay | None]:
        """Save the pictures of a tool's answer and its marks on a picture (by default the first of `begun_with`)."""
        images, overlay = self.save_all(result.images), result.overlay
        if result.mask is not None or overlay is not None:
            shown = self.save(result.on_image) if result.on_image else next(iter(begun_with), None)
            mask_path = self.save(result.mask) if result.mask else None
            overlay = replace(overlay or Overlay(), image=shown, mask_path=mask_path)
        return images, overlay

    def seen(
        self, trajectory: Trajectory, prompt: Sequence[Message], shown: Sequence[ShownImage], keep: bool
    ) -> Trajectory:
        """Add the pictures that a vision policy was shown to its trajectory. keep: save the prompt's pictures."""
        paths = [self.save(picture) if keep else None for picture in pictures_of(prompt)]
        opening = [image for image in shown if image.turn < 0]
        steps = list(trajectory.steps)
        for index, step in enumerate(steps):
            seen = [image for image in shown if image.turn == index]
            kept = step.images if len(step.images) == len(seen) else [None] * len(seen)
            steps[index] = replace(step, seen=_noted(seen, kept)) if seen else step
        return replace(trajectory, steps=tuple(steps), seen=_noted(opening, paths[: len(opening)]))


def cleaned(content: object) -> Content:
    """Remove text that tokenizers reject from a message's content. Raises TypeError."""
    checked = checked_content(content)
    if isinstance(checked, str):
        return clean_text(checked)
    return [{**b, "text": clean_text(b["text"])} if b["type"] == "text" else b for b in checked]


def loaded(picture: Picture) -> Picture:
    """Load the pixels of a picture, so that the author's code may raise or hang here, but not later."""
    pixels = picture.load()
    return Picture(picture.name, lambda: pixels)


def _noted(shown: Sequence[ShownImage], paths: Sequence[str | None]) -> tuple[SeenImage, ...]:
    images = (s.image for s in shown)
    return tuple(SeenImage(i.size[0], i.size[1], i.tokens, path) for i, path in zip(images, paths, strict=True))
