"""The attention windows of a model, and a way to test tokens beyond them on short rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from .patches import patched
from .unwrap import base_of

WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size", "window_size", "local_attention")
"""Names by which transformers stores the length of a layer's attention window, or of its chunks."""


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
