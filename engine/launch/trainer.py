"""Whether the trainer is installed: the viewer, the importers and the recorder do without it."""

from __future__ import annotations

import importlib.util

from .errors import LaunchError

LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
INSTALL = "pip install 'grpo-tui[train]'"


def missing() -> list[str]:
    """Which of the libraries that training cannot do without are not installed. Imports none of them."""
    return [name for name in LIBRARIES if importlib.util.find_spec(name) is None]


def require(what: str) -> None:
    """Raise LaunchError when `what` (a verb, as in "training") cannot run because the trainer is not installed."""
    if lacking := missing():
        raise LaunchError(f"{what} needs the trainer ({', '.join(lacking)} not installed): {INSTALL}")
