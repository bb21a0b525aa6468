"""What is minimised for a token: one file a loss.

TRL's losses are known by TRL's names and stay TRL's own code. A loss beside them is a function from `LossInputs` to the
loss of every token; the mean over the step's agent tokens and the KL penalty are the trainer's. To add one, copy
`reinforce.py` and enter it in `LOSSES`; a function in a file of your own needs no entry: name it in the configuration
as `training.loss_type: path/to/file.py:function`.
"""

from __future__ import annotations

from typing import cast

from ....configs.errors import GrpoTuiError
from ....configs.sections.training import TRL_LOSSES
from ....envs.user_code import UserCodeError, find_module
from .base import Loss
from .reinforce import reinforce

LOSSES: dict[str, Loss] = {"reinforce": reinforce}


class LossError(GrpoTuiError, ValueError):
    """There is no such loss; the message says which there are."""


def own_loss(name: str) -> Loss | None:
    """The loss called `name` in `LOSSES`, or the user's function at `package.module.function` or `file.py:function`;
    None for one of TRL's. Raises LossError."""
    if name in TRL_LOSSES:
        return None
    if name in LOSSES:
        return LOSSES[name]
    if "." not in name:
        known = ", ".join((*TRL_LOSSES, *LOSSES))
        raise LossError(f'training.loss_type: there is no loss "{name}": {known}, or file.py:function')
    try:
        module, function = find_module(name)
    except UserCodeError as problem:
        raise LossError(f"training.loss_type: {problem}") from problem
    found = getattr(module, function, None)
    if not callable(found):
        raise LossError(f"training.loss_type: {module.__name__} has no function {function}")
    return cast("Loss", found)
