"""What lies over a screen until it is answered: a dialog, the metric picker."""

from __future__ import annotations

from typing import TypeVar

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen

Answer = TypeVar("Answer")


class Modal(ModalScreen[Answer]):
    """Left once: keys that arrive between the answer and its end would leave the screen below, too."""

    def dismiss(self, result: Answer | None = None) -> AwaitComplete:
        """Answer, unless that was done, or another screen lies on top."""
        return super().dismiss(result) if self.app.screen is self else AwaitComplete.nothing()
