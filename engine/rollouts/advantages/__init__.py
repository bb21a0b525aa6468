"""From rewards per turn to advantages per token: one file a method.

A method is a subclass of `AdvantageMethod` with one function, `returns`: what is compared within a group. The one
called `turn` is `TurnAdvantage` in `turn.py`. To add one, copy that file and enter the name in the configuration's
`Advantages` (`configs/sections/training.py`); a class in a file of your own needs no entry: name it in the
configuration as `training.advantages: path/to/file.py:Class`.
"""

from __future__ import annotations

import importlib
from typing import get_args

from ....configs.errors import GrpoTuiError
from ....configs.sections.training import Advantages
from ....envs.user_code import UserCodeError, find_class
from .base import AdvantageMethod
from .gdpo import GdpoAdvantage
from .group import GroupAdvantage
from .parts import Among

METHODS: tuple[str, ...] = get_args(Advantages)
"""Those that come with the package."""


class AdvantageError(GrpoTuiError, ValueError):
    """There is no such method of computing advantages; the message says which there are."""


def advantage_method(name: str, among: Among = "equals") -> AdvantageMethod:
    """The method of `METHODS` called `name`, or the class of the user's at `package.module.Class` or `file.py:Class`.

    among: what `group` and `gdpo` compare shaping with. Raises AdvantageError.
    """
    for method in (GroupAdvantage, GdpoAdvantage):
        if name == method.name:
            return method(among)
    if name in METHODS:
        module = importlib.import_module(f".{name}", __package__)
        return getattr(module, f"{name.capitalize()}Advantage")()
    if "." not in name:
        raise AdvantageError(f'there are no advantages "{name}": {", ".join(METHODS)}, or file.py:Class')
    try:
        found = find_class(name)
    except UserCodeError as problem:
        raise AdvantageError(f"training.advantages: {problem}") from problem
    if not issubclass(found, AdvantageMethod):
        raise AdvantageError(f"training.advantages: {name} is no subclass of AdvantageMethod")
    return found()
