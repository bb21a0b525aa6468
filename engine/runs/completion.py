"""What could stand at the end of a filter that is being typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .conditions import FLAGS, KEYS, LABELS, NUMBERS

_LAST = re.compile(r"(?P<key>[A-Za-z_]+)(?::|=)(?P<value>[^\s()\"']*)$|(?P<word>[A-Za-z_]+)$")
_MOST = 8
"""Completions that are offered."""


def completions(text: str, names: Callable[[str], Sequence[str]]) -> list[str]:
    """The whole filter with its last word completed, the nearest first; nothing when there is nothing to complete.

    `names(kind)` gives the recorded names of a kind (`action`, `penalty`, …).
    """
    found = _LAST.search(text)
    if found is None:
        return []
    if found["word"] is not None:
        begun, start = found["word"].lower(), found.start("word")
        words = [*(f"{key}:" for key in KEYS), *FLAGS, *NUMBERS]
        return [text[:start] + w for w in words if w.startswith(begun) and w != begun][:_MOST]
    key, begun, start = found["key"].lower(), found["value"].lower(), found.start("value")
    if key not in LABELS:
        return []
    known = [n for n in names(key) if n.lower() != begun]
    wanted = [n for n in known if n.lower().startswith(begun)] or [n for n in known if begun in n.lower()]
    return [text[:start] + (n if re.fullmatch(r"[^\s()\"':]+", n) else f'"{n}"') for n in wanted][:_MOST]
