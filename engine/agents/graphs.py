"""CUDA graphs for decoding. A pass over one token per row launches hundreds of short kernels, and launching them from
Python takes several times as long as running them. A graph launches all of them with one call.

A graph is bound to a number of rows, a number of visible slots and the storage of one cache. Visible slots are rounded
up, so that a few graphs serve a turn. The mask hides slots beyond a row's tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from .decoder import Decoder
from .row_cache import RowCache

logger = logging.getLogger(__name__)

SLOTS = 256
"""Visible slots are rounded up to a multiple of this."""
WORTH = 1
"""Passes of one shape that run from Python before it gets a graph. Capturing one takes about as long."""

Pass = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From tokens and positions int64 `[n, 1]` to logits `[n, V]`."""


class DecodingGraphs:
    """The graphs of a decoder over the current storage of `cache`. Useless after a rebuild of the cache.

    If a model's pass cannot be captured (because it reads a number back, say), all passes run from Python.
    """

    def __init__(self, decoder: Decoder, cache: RowCache) -> None:
        self._decoder = decoder
        self._cache = cache
        self._block: object = None
        self._pool = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[int, int], Pass] = {}
        self._passes: dict[tuple[int, int], int] = {}
        self._possible = True

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Run `Decoder.forward` for tokens and positions int64 `[n, 1]`. Returns logits `[n, V]`, which the next call
        overwrites. length: the `kv_length` of `Decoder.forward`."""
        if (block := getattr(self._decoder.base, "acting_block", None)) is not self._block:
            self._block = block  # the weight copies that the graphs read are gone
            self._captured.clear()
        length = min(-(-length // SLOTS) * SLOTS, self._cache.capacity)
        shape = len(tokens), length
        graph = self._captured.get(shape)
        if graph is None and self._possible and self._passes.get(shape, 0) >= WORTH:
            graph = self._capture(tokens, positions, length)
        if graph is None:
            self._passes[shape] = self._passes.get(shape, 0) + 1
            return self._decoder.forward(tokens, positions, self._cache, length)
        return graph(tokens, positions)

    def _capture(self, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> Pass | None:
        fed, at, graph = tokens.clone(), positions.clone(), torch.cuda.CUDAGraph()
        try:
            # Other threads may use the device during capture.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                logits = self._decoder.forward(fed, at, self._cache, length)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            logger.info("%s decodes without CUDA graphs", type(self._decoder.base).__name__, exc_info=True)
            self._possible = False
            return None

        def replay(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            fed.copy_(tokens)
            at.copy_(positions)
            graph.replay()
            return logits

        self._captured[len(tokens), length] = replay
        return replay
