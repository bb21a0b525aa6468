"""Changes of a model for the duration of a block: an attribute, and the length of its attention windows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from .unwrap import base_of

WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "window_size", "local_attention")
"""Names by which transformers stores the length of a layer's attention window, or of its chunks."""
_NONE = object()


@contextlib.contextmanager
def patched(target: object, name: str, value: object) -> Iterator[None]:
    """Set `target.name` to `value` inside the block, and restore it afterwards. Works for attributes of the object or
    its class, and for properties. Blocks nest."""
    computed = isinstance(getattr(type(target), name, None), property)
    before = getattr(target, name) if computed else vars(target).get(name, _NONE)
    setattr(target, name, value)
    try:
        yield
    finally:
        if before is _NONE:
            delattr(target, name)
        else:
            setattr(target, name, before)


@contextlib.contextmanager
def short_windows(model: nn.Module, tokens: int) -> Iterator[bool]:
    """Shorten attention windows to `tokens` in the block; yields whether one was longer.

    Rows of a few tokens then extend beyond windows of any size, in the configuration and in each layer.
    """
    config: Any = base_of(model).config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["unknown"])
    windows = {} if kinds == {"full_attention"} else {name: getattr(config, name, None) for name in WINDOWS}
    with contextlib.ExitStack() as stack:
        shorter = False
        for name, window in windows.items():
            if isinstance(window, int) and window > tokens:
                for owner in (config, *model.modules()):
                    if vars(owner).get(name) == window:
                        stack.enter_context(patched(owner, name, tokens))
                shorter = True
        yield shorter
