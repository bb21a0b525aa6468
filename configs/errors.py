"""The root of this project's errors, and the faults of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class GrpoTuiError(Exception):
    """An error for people, in one sentence: the problem, its place, and the fix.

    Every such error derives from it and from the standard class that fits (`ValueError`, …).
    """

    exit_code = 1
    """Of a command that ends with this error: 2 for wrong options or configurations, 3 for runs that are not there."""


@dataclass(frozen=True)
class Problem:
    """One fault: the dotted key, the fault, the fix, and the place."""

    key: str
    message: str
    right: str = ""
    place: str = ""
    """`file.yaml:12`, `--set training.beta=x`, or empty for a default."""

    def __str__(self) -> str:
        head = ": ".join(part for part in (self.place, self.key) if part)
        text = f"{head}: {self.message}" if head else self.message
        return f"{text}; {self.right}" if self.right else text


class ConfigError(GrpoTuiError, ValueError):
    """The configuration cannot be used. `problems` holds all faults, not only the first."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


def is_interrupt(error: BaseException) -> bool:
    """Return whether SIGINT raised a KeyboardInterrupt. If a `raise` statement did, the user's code has failed."""
    last = error.__traceback__
    if not isinstance(error, KeyboardInterrupt) or last is None:
        return False
    import dis

    while last.tb_next is not None:
        last = last.tb_next
    raised = dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
    return not raised or last.tb_frame.f_globals.get("__name__") == "asyncio.runners"  # which raises it for a SIGINT


def count(value: int, noun: str = "", nouns: str = "") -> str:
    """Format an integer with thousands separators and its noun: `1,000,000`, `1 token`, `2 tokens`."""
    return f"{value:,} {noun if value == 1 else nouns or f'{noun}s'}" if noun else f"{value:,}"
