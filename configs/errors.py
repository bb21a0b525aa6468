"""The root of this project's errors."""

from __future__ import annotations


class GrpoTuiError(Exception):
    """An error for people, in one sentence: the problem, its place, and the remedy.

    Every such error derives from it and from the standard class that fits (`ValueError`, …).
    """
