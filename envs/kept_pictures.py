"""The pictures of a trial that are kept for people to look at."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from .base import ImageStore, Picture, StepResult
from .trajectory import Overlay

logger = logging.getLogger(__name__)

REMEMBERED = 100_000
"""Names of saved pictures that are held, so that a picture of a group is saved once."""


@dataclass
class KeptPictures:
    """Saves pictures into `store`; without one nothing is kept."""

    store: ImageStore | None = None
    _saved: dict[str, str] = field(default_factory=dict)  # a picture's name → the path that it was saved at

    def save(self, picture: Picture) -> str | None:
        """Save a picture once and return its path; a picture that cannot be saved costs the picture, not the run."""
        if self.store is None:
            return None
        path = self._saved.get(picture.name)
        if path is None:
            try:
                path = self.store.save_image(picture.load(), picture.name)
            except Exception:
                logger.warning("could not save the picture %s", picture.name, exc_info=True)
                return None
            if len(self._saved) > REMEMBERED:
                self._saved.clear()
            self._saved[picture.name] = path
        return path

    def save_all(self, pictures: tuple[Picture, ...]) -> tuple[str, ...]:
        """The paths of those that could be saved."""
        return tuple(path for path in map(self.save, pictures) if path)

    def of_answer(self, result: StepResult, begun_with: tuple[str, ...]) -> tuple[tuple[str, ...], Overlay | None]:
        """Keep the pictures of a tool's answer, and its marks on a picture (on the first of `begun_with`
        where the tool names none)."""
        images, overlay = self.save_all(result.images), result.overlay
        if result.mask is not None or overlay is not None:
            shown = self.save(result.on_image) if result.on_image else next(iter(begun_with), None)
            mask_path = self.save(result.mask) if result.mask else None
            overlay = replace(overlay or Overlay(), image=shown, mask_path=mask_path)
        return images, overlay
