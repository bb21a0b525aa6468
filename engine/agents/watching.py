"""Who watches the texts of an agent while they are written: see `engine.runs.control.live`, which implements both."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class WatchedBatch(Protocol):
    """The rollouts of one session. Rows are those of the session."""

    def turn(self) -> None:
        """A turn begins."""
        ...

    def due(self) -> bool:
        """Whether the watcher wants to look now. Asked after every token: it must cost next to nothing."""
        ...

    def look(self, step: int, steps: int) -> AbstractContextManager[None]:
        """Report inside, after `step` of at most `steps` tokens of a turn; the time that it takes is measured."""
        ...

    def wants(self, row: int) -> bool:
        """Whether the text of a row is wanted, or only its number of tokens."""
        ...

    def writes(self, row: int, tokens: int, text: str | None = None, *, cut: bool = False, over: bool = False) -> None:
        """A row has written so many tokens of its present turn, the newest of which are `text`."""
        ...

    def wrote(self, row: int, tokens: int, text: str) -> None:
        """A row has ended its turn."""
        ...

    def goes_on(self, row: int) -> None:
        """A row begins another turn."""
        ...

    def close(self) -> None:
        """Nothing more is written."""
        ...


class Watcher(Protocol):
    """Watches the sessions of an agent."""

    def begin(self, prompts: Sequence[str], num_rollouts: int, limit: int) -> WatchedBatch:
        """A session of so many rollouts of each prompt; limit: tokens that all can have together."""
        ...
