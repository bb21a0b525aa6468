"""The base class of penalty rules. A rule reads tool declarations and the facts of a step, and keeps no state."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from ...envs.tools import ToolSpec
from ...envs.trajectory import Step, Trajectory
from ..breakdown import Penalty

SHOWN = 120
"""Maximum characters of a model's text to quote in a penalty."""

_JSON = json.JSONEncoder(ensure_ascii=False, default=str)


class Episode:
    """One trajectory for the rules, with tools by name and each step's canonical action, computed once."""

    __slots__ = ("keys", "steps", "tools", "trajectory")

    def __init__(self, trajectory: Trajectory, keys: Sequence[str] | None = None) -> None:
        self.trajectory = trajectory
        self.steps = trajectory.steps
        self.tools: Mapping[str, ToolSpec] = {t.name: t for t in trajectory.tools}
        self.keys: Sequence[str] = [s.action_key for s in trajectory.steps] if keys is None else keys


class PenaltyRule:
    """One rule. A user's rule is a subclass with `id`, `amount` and `check`, named in `rewards.penalty_rules`.

    `id` names the rule in records and filters. `amount` (<= 0) is the cost of one violation, before the weight. A rule
    gives at most one penalty per step, however many faults it finds, so that penalties stay bounded.
    """

    id: str = ""
    amount: float = -0.1

    def __init__(self, amount: float | None = None) -> None:
        if amount is not None:
            self.amount = amount

    def check(self, episode: Episode, step: Step) -> Penalty | None:
        """Return the penalty of this step, or None. Called for each step in order. Must not have side effects."""
        raise TypeError(f"{type(self).__name__} has no method check(episode, step): a penalty rule needs one")

    def penalty(self, step: Step, *, saw: Mapping[str, object], limit: str, why: str, right: str) -> Penalty:
        """Create a penalty of this rule. `why` and `right` are sentences for people."""
        return Penalty(rule=self.id, amount=self.amount, step=step.index, saw=saw, limit=limit, why=why, right=right)


def shown(value: object, limit: int = SHOWN) -> str:
    """Format a value that a model wrote as printable JSON, cut to `limit` characters."""
    return printable(_JSON.encode(value), limit)


def printable(text: str, limit: int) -> str:
    """Escape unprintable characters and cut the text to `limit` characters."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in cut)


def named(name: object) -> str:
    """Format a name that a model made up, printable and cut."""
    return printable(str(name), 40)


def kept(value: object) -> object:
    """Return a value for `Penalty.saw`: unchanged if small, else its beginning as text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = shown(value, 200)
    return value if len(text) < 200 else text


def call_text(step: Step) -> str:
    """Format the call for people: `GET_PROPERTIES(mask=7)`."""
    arguments = ", ".join(f"{named(name)}={shown(value, 40)}" for name, value in step.arguments.items())
    return f"{named(step.action)}({arguments if len(arguments) <= SHOWN else arguments[: SHOWN - 1] + '…'})"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to a made-up one, or None."""
    return _nearest(name[:SHOWN], tuple(known))


@lru_cache(maxsize=1024)
def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def listed(values: Iterable[object], limit: int = 8) -> str:
    """Format values as `1, 2, 3`, only the last ones if there are many, or `none`."""
    texts = [str(v) for v in values]
    if not texts:
        return "none"
    return ("…, " if len(texts) > limit else "") + ", ".join(texts[-limit:])
