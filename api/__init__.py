"""The interface for training scripts: `from grpo_tui import Recorder, Rollout`, `import grpo_tui.trl`.

The import is light: each name is loaded on first use. `setup.py` installs this folder as the top of the package, so the
imports are absolute (`grpo_tui.engine…`).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_tui.engine.imports.rollout import Message as Message
    from grpo_tui.engine.imports.rollout import Rollout as Rollout
    from grpo_tui.engine.imports.rollout import Score as Score
    from grpo_tui.recorder import Recorder as Recorder

__all__ = ["Message", "Recorder", "Rollout", "Score"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "grpo_tui.recorder" if name == "Recorder" else "grpo_tui.engine.imports.rollout"
    return getattr(import_module(home), name)
