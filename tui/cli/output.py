"""Plain lines and JSON on standard output. Loads nothing that a list of runs does not need."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from io import TextIOWrapper
from typing import Any


def write_any_character() -> None:
    """Let output in an encoding without a character, such as ✓ in ASCII, show `?` there."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            with suppress(OSError):  # a stream that was not opened by Python itself
                stream.reconfigure(errors="replace")


def say(text: str = "") -> None:
    """Print one line on standard output, at once. Pass text of a model through `literal` first."""
    print(text, flush=True)


def json_line(value: Any) -> str:
    """Return one line of strict JSON in ASCII. Control and direction characters are escaped. NaN and infinity are the
    texts `NaN`, `Infinity` and `-Infinity`, so that null means "not recorded"."""
    return json.dumps(_strict(value), ensure_ascii=True, allow_nan=False, separators=(", ", ": "))


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, Mapping):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_strict(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _strict(getattr(value, name)) for name in value.__dataclass_fields__}
    if value is None or isinstance(value, (str, int, bool)):
        return value
    return str(value)
