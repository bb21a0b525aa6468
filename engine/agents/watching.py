"""Interfaces for following texts while they are written, implemented by `engine.runs.control.live`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class WatchedBatch(Protocol):
    """The rollouts of one session. Rows are those of the session."""

    def turn(self) -> None: ...

    def due(self) -> bool:
        """Return whether the watcher wants a report. It is asked after every token and must be cheap."""
        ...

    def look(self, step: int, steps: int) -> AbstractContextManager[None]:
        """Return a context for a report after `step` of at most `steps` tokens; its time is measured."""
        ...

    def wants(self, row: int) -> bool:
        """Return whether the text of a row is wanted, or only its number of tokens."""
        ...

    def writes(self, row: int, tokens: int, text: str | None = None, *, cut: bool = False, over: bool = False) -> None:
        """Report the tokens of a row's present turn and the newest text."""
        ...

    def wrote(self, row: int, tokens: int, text: str) -> None:
        """Report the end of a row's turn."""
        ...

    def goes_on(self, row: int) -> None:
        """Report that a row begins another turn."""
        ...

    def close(self) -> None: ...


class Watcher(Protocol):
    """Follows the sessions of an agent."""

    def begin(self, prompts: Sequence[str], num_rollouts: int, limit: int) -> WatchedBatch:
        """Return the batch of a session. limit: the maximum number of tokens of all rollouts together."""
        ...
