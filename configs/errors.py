"""The root of this project's errors."""

from __future__ import annotations


class GrpoTuiError(Exception):
    """What went wrong, in one sentence for a person: what, where, and what would be right.

    Every error that is meant for people derives from it, beside the standard class that fits (`ValueError`, …).
    """
