"""Texts from the running batch: in pieces while they grow, and complete."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....envs.trajectory import Call
from ...agents.sampling import TokenLogprobs


@dataclass(frozen=True)
class Piece:
    """A piece of a growing text. index: which of the request's texts. scores: those of the tokens that it completes."""

    text: str
    index: int = 0
    scores: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class Written:
    """A complete text for the caller. scores: those of its tokens, if the caller wants them. calls: tool calls after
    the text. problem: the reason why it lacks the form that the caller wants, else empty.
    """

    text: str
    scores: tuple[TokenLogprobs, ...] = ()
    calls: tuple[Call, ...] = ()
    problem: str = ""


class TextStream:
    """Decodes a growing row of tokens to pieces of text that end with complete characters.

    The text ends before the first `stop` string. Text that may be the beginning of a stop string is held back.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = stop
        self._begin = self._read = 0
        self._withheld = ""
        self._lengths: list[int] = []
        """Length of the text, in characters, after each token read."""
        self.returned = 0
        """Number of characters that `piece` has returned."""
        self.scored = 0
        """Number of tokens whose scores were sent to the caller."""
        self.stopped = False
        """Whether a stop string was written."""

    def piece(self, tokens: Sequence[int]) -> str:
        """Return the text since the last call; empty while a character or a stop string is incomplete."""
        text = self._withheld + self._new(tokens)
        self._lengths += [self.returned + len(text)] * (len(tokens) - len(self._lengths))
        complete = before_stop(text, self._stop)
        self.stopped = complete != text
        withheld = 0 if self.stopped else max((_partial_stop(text, stop) for stop in self._stop), default=0)
        self._withheld = text[len(complete) - withheld :] if withheld else ""
        self.returned += len(complete) - withheld
        return complete[: len(complete) - withheld]

    @property
    def complete(self) -> int:
        """Number of tokens whose text `piece` has returned."""
        return bisect_right(self._lengths, self.returned)

    def _new(self, tokens: Sequence[int]) -> str:
        # The window begins one piece earlier, because some tokenizers drop a leading space when they decode.
        before = self._decode(tokens[self._begin : self._read])
        text = self._decode(tokens[self._begin :])
        if len(text) <= len(before) or text.endswith("\ufffd"):
            return ""
        self._begin, self._read = self._read, len(tokens)
        return text[len(before) :]


def before_stop(text: str, stop: Sequence[str]) -> str:
    """Return the text before the first stop string in it."""
    return text[: min((start for s in stop if (start := text.find(s)) >= 0), default=len(text))]


def _partial_stop(text: str, stop: str) -> int:
    """Return how many of the first characters of `stop` the text ends with."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)
