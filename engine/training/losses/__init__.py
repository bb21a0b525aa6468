"""Losses of a token, one file each.

TRL's losses are known by TRL's names and stay TRL's own code. Any other loss is a function from `LossInputs` to the
loss of every token; the mean over the step's agent tokens and the KL penalty are the trainer's. The one called
`reinforce` is the function of that name in `reinforce.py`. To add one, copy that file and enter the name in the
configuration's `OwnLoss` (`configs/sections/training.py`); a function in a file of your own needs no entry: name it in
the configuration as `training.loss_type: path/to/file.py:function`.
"""

from __future__ import annotations

import importlib
from typing import cast

from ....configs.errors import GrpoTuiError
from ....configs.sections.training import OWN_LOSSES, TRL_LOSSES
from ....envs.user_code import UserCodeError, find_module
from .base import Loss


class LossError(GrpoTuiError, ValueError):
    """There is no such loss. The message lists the known ones."""


def own_loss(name: str) -> Loss | None:
    """The loss called `name` in this folder, or the user's function at `package.module.function` or `file.py:function`;
    None for one of TRL's. Raises LossError."""
    if name in TRL_LOSSES:
        return None
    if name in OWN_LOSSES:
        return getattr(importlib.import_module(f".{name}", __package__), name)
    if "." not in name:
        known = ", ".join((*TRL_LOSSES, *OWN_LOSSES))
        raise LossError(f'training.loss_type: there is no loss "{name}": {known}, or file.py:function')
    try:
        module, function = find_module(name)
    except UserCodeError as problem:
        raise LossError(f"training.loss_type: {problem}") from problem
    found = getattr(module, function, None)
    if not callable(found):
        raise LossError(f"training.loss_type: {module.__name__} has no function {function}")
    return cast("Loss", found)
