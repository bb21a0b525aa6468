"""What libraries do again and again with one and the same result is done once a process."""

from __future__ import annotations

import gc
from functools import cache
from types import SimpleNamespace

from jinja2 import Environment


def compile_templates_once() -> None:
    """Each folder of adapters gets a model card, always of one template."""
    Environment.compile = cache(Environment.compile)  # type: ignore[method-assign]


def lighten_trainings() -> None:
    """Accelerate reads the metadata of PEFT's package whenever it unwraps a model, and whenever a training starts it
    looks at every object of the process for garbage: Python's own collections are enough for small models, and they
    need not look at torch's own objects."""
    from accelerate.utils import imports, memory

    imports._is_package_available = cache(imports._is_package_available)
    memory.gc = SimpleNamespace(collect=lambda: 0)  # type: ignore[attr-defined]
    gc.freeze()


def lighten_strips() -> None:
    """Each line that Textual paints has seven small caches, and makes them before it needs one. A dictionary does."""
    from textual import strip

    strip.FIFOCache = lambda maxsize: {}  # type: ignore[assignment, misc]
