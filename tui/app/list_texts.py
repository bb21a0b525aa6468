"""Routes and prompts in the few cells of a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

_LEAST_SHARED = 12
"""Characters that prompts must begin with in common before their beginning is left out."""


def route(actions: Sequence[str]) -> str:
    """Return the actions in order with repeats counted: `SEGMENT ▸ GET ×3 ▸ ANSWER`."""
    parts = []
    for action, same in groupby(actions):
        times = len(list(same))
        parts.append(short(None if action == "?" else action) + (f" ×{times}" if times > 1 else ""))
    return " ▸ ".join(parts)


def shared_beginning(prompts: Iterable[str]) -> int:
    """Return how many characters different prompts share at the start, up to a word; 0 if hardly any."""
    different = set(prompts) - {""}
    if len(different) < 2:
        return 0
    first, last = min(different), max(different)  # in the order of characters these two differ the soonest
    shared = first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
    cut = max(shared.rfind(" "), shared.rfind("\n")) + 1
    return cut if cut >= _LEAST_SHARED else 0


def telling(prompt: str, shared: int) -> str:
    """Return the part of a prompt that differs from the others."""
    return f"…{prompt[shared:]}" if shared and len(prompt) > shared else prompt


def short(action: str | None) -> str:
    """Return the first word of an action for routes: `SEGMENT` for `SEGMENT_OBJECT_AT`."""
    if action is None:
        return "?"
    head = action.split("_")[0]
    return head if 2 <= len(head) <= 12 else action[:12]
