"""Repeated actions: the one penalty of repetition, as a part of R_coherence. No torch here."""

from __future__ import annotations

from collections.abc import Sequence

WINDOW = 3
"""An action repeats if it is among those of this many steps before it."""
REPETITION = -1.0
"""R_coherence of a step that repeats an action, before normalisation and weight."""


def repeated(keys: Sequence[str]) -> list[bool]:
    """Whether each step of a trajectory repeats an action. keys: the canonical action of each step."""
    return [key in keys[max(0, i - WINDOW) : i] for i, key in enumerate(keys)]
