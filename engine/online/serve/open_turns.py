"""Turns that call tools wait for their conversation to continue, and are recorded as a part of it."""

from __future__ import annotations

import time

from .answers import Answer

OPEN_S = 60.0
"""Time after which a turn is recorded without its continuation."""


class OpenTurns:
    """For the engine's thread."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[float, Answer]] = {}

    @property
    def numbers(self) -> list[int]:
        return list(self._open)

    def hold(self, answer: Answer) -> bool:
        """End the waiting of the turn that this answer continues. Return whether the answer itself waits now."""
        talk = answer.request.conversation
        if talk is not None and talk.previous is not None:
            self._open.pop(talk.previous.request, None)
        if len(answer.written) != 1 or not answer.written[0].calls:
            return False
        self._open[answer.request.number] = (time.monotonic() + OPEN_S, answer)
        return True

    def due(self, *, all_: bool = False) -> list[Answer]:
        """Remove and return the turns that waited long enough, or all of them."""
        now = time.monotonic()
        due = [number for number, (until, _) in self._open.items() if all_ or now > until]
        return [self._open.pop(number)[1] for number in due]
