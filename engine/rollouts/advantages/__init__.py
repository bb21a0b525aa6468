"""From rewards per turn to advantages per token: one file a method.

A method is a subclass of `AdvantageMethod` with one function, `returns`: what is compared within a group. To add one,
copy `turn.py` and enter the class in `METHODS`; a class in a file of your own needs no entry: name it in the
configuration as `training.advantages: path/to/file.py:Class`.
"""

from __future__ import annotations

from ....configs.errors import GrpoTuiError
from ....envs.user_code import UserCodeError, find_class
from .base import AdvantageMethod
from .gdpo import Among, GdpoAdvantage
from .group import GroupAdvantage
from .reward import RewardAdvantage
from .turn import TurnAdvantage

METHODS: dict[str, type[AdvantageMethod]] = {
    "reward": RewardAdvantage,
    "group": GroupAdvantage,
    "turn": TurnAdvantage,
    "gdpo": GdpoAdvantage,
}


class AdvantageError(GrpoTuiError, ValueError):
    """There is no such method of computing advantages; the message says which there are."""


def advantage_method(name: str, among: Among = "group") -> AdvantageMethod:
    """The method called `name` in `METHODS`, or the class of the user's at `package.module.Class` or `file.py:Class`.

    among: what `gdpo` compares lower components with. Raises AdvantageError.
    """
    if name == GdpoAdvantage.name:
        return GdpoAdvantage(among)
    if name in METHODS:
        return METHODS[name]()
    if "." not in name:
        raise AdvantageError(f'there are no advantages "{name}": {", ".join(METHODS)}, or file.py:Class')
    try:
        found = find_class(name)
    except UserCodeError as problem:
        raise AdvantageError(f"training.advantages: {problem}") from problem
    if not issubclass(found, AdvantageMethod):
        raise AdvantageError(f"training.advantages: {name} is no subclass of AdvantageMethod")
    return found()
