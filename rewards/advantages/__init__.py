"""From rewards per turn to advantages: one file a method, each a subclass of `AdvantageMethod` with one function.

The method called `turn` is `TurnAdvantage` in `turn.py`. To add one, copy that file and enter the name in the
configuration's `Advantages` (`configs/sections/training.py`). A class in a file of your own needs no entry: name it in
the configuration as `training.advantages: path/to/file.py:Class`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, get_args

from .base import AdvantageMethod as AdvantageMethod
from .base import Among

if TYPE_CHECKING:
    METHODS: tuple[str, ...]


def __getattr__(name: str) -> tuple[str, ...]:
    """Return `METHODS`, the names of the package's methods. Screens use this package without pydantic."""
    if name != "METHODS":
        raise AttributeError(name)
    from ...configs.sections.training import Advantages

    return get_args(Advantages)


def packaged_method(name: str, among: Among = "peers") -> AdvantageMethod:
    """Return the method of the package called `name`. among: what `group` and `gdpo` compare shaping with."""
    module = importlib.import_module(f".{name}", __package__)
    method = getattr(module, f"{name.capitalize()}Advantage")
    return method(among) if name in ("group", "gdpo") else method()
