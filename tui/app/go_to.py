"""Destinations that a user types after `:`: a number, an id, a step, or a screen."""

from __future__ import annotations

import re

from ...engine.runs.search.query import EVERYTHING, Query
from .data import Reads
from .destinations import Destination, Groups, Live, Runs, Stepper, Trajectories

HINT = "812 or an id: that trajectory (in the stepper: that step) · 812/3: its third step · step 40 · live, list, runs"
_NUMBER = re.compile(r"(\d{1,18})\s*(?:/\s*(\d{1,9}))?")
_STEP = re.compile(r"step[\s:=]*(\d{1,18})", re.IGNORECASE)


def destination(text: str, reads: Reads, query: Query = EVERYTHING) -> Destination:
    """Return the screen for a typed text. Raises LookupError with a message for the user."""
    text = text.strip()
    run = reads.path
    screens = {
        "runs": Runs(),
        "live": Live(run),
        "dashboard": Live(run),
        "list": Trajectories(run),
        "trajectories": Trajectories(run),
        "groups": Groups(run, query),
    }
    begun = [place for name, place in screens.items() if text and name.startswith(text.lower())]
    if begun:
        return begun[0]
    step = _STEP.fullmatch(text)
    if step is not None:
        return Trajectories(run, Query(filter=f"step={int(step[1])}"))
    number = _NUMBER.fullmatch(text)
    if number is None:
        return Stepper(run, reads.now.bodies.number(text), query)
    n = reads.now.bodies.number(int(number[1]))
    return Stepper(run, n, query, step=max(0, int(number[2] or 1) - 1))
