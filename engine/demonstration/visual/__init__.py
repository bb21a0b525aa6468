"""Answer questions about pictures and short videos with tools that work on the pixels.

`env` is the environment and `operations` the tools. `scenes`, `questions` and `render` make its tasks. `routes`
shows ways through them, right and wrong. `own_images` reads a user's pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....configs.lazy import loaded_when_used

if TYPE_CHECKING:
    from .env import VisualEnv as VisualEnv

__getattr__ = loaded_when_used(
    __name__,
    {
        "env": ("VisualEnv",),
    },
)
