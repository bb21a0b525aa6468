"""Compute advantages from rewards per turn. Each method is a subclass of `AdvantageMethod` in its own file.

The method called `turn` is `TurnAdvantage` in `turn.py`. To add one, copy that file and add the name to `Advantages`
(`configs/sections/training.py`). A class in your own file needs no entry: set `training.advantages:
path/to/file.py:Class`.
"""

from __future__ import annotations

import importlib

from .base import AdvantageMethod as AdvantageMethod
from .base import Among


def packaged_method(name: str, among: Among = "peers") -> AdvantageMethod:
    """Return the package's method called `name`. among: the peers of shaping in `group` and `gdpo`."""
    module = importlib.import_module(f".{name}", __package__)
    method = getattr(module, f"{name.capitalize()}Advantage")
    return method(among) if name in ("group", "gdpo") else method()
