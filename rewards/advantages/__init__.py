"""Compute advantages from rewards per turn. Each method is a subclass of `AdvantageMethod` in its own file.

The method called `turn` is `TurnAdvantage` in `turn.py`. To add one, copy that file and add the name to `Advantages`
(`configs/sections/training.py`). A class in your own file needs no entry: set `training.advantages:
path/to/file.py:Class`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, get_args

from .base import AdvantageMethod as AdvantageMethod
from .base import Among

if TYPE_CHECKING:
    METHODS: tuple[str, ...]


def __getattr__(name: str) -> tuple[str, ...]:
    """Load `METHODS`, the names of the package's methods, lazily: screens use this package without pydantic."""
    if name != "METHODS":
        raise AttributeError(name)
    from ...configs.sections.training import Advantages

    return get_args(Advantages)


def packaged_method(name: str, among: Among = "peers") -> AdvantageMethod:
    """Return the package's method called `name`. among: the peers of shaping in `group` and `gdpo`."""
    module = importlib.import_module(f".{name}", __package__)
    method = getattr(module, f"{name.capitalize()}Advantage")
    return method(among) if name in ("group", "gdpo") else method()
