"""Maps a batch's rows to places in the KV cache, counts the tokens that it holds of each, and decodes with graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch

from .chat_session import TokenHistory
from .decoder import Decoder, UnsupportedModelError
from .row_cache import RowCache
from .seen_rows import SeenPass, SeenRows

logger = logging.getLogger(__name__)

GROWTH = 1.5
"""Growth factor of a cache that is too short, so that long conversations are rarely copied."""
SLOTS = 256
"""Visible slots are rounded up to a multiple of this."""
WORTH = 1
"""Passes of one shape that run from Python before it gets a graph. Capturing one takes about as long."""

Pass = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From tokens and positions int64 `[n, 1]` to logits `[n, V]`."""


class CachedRows:
    """The rows of `history` over a `RowCache`. Acting rows have the first places, so that decoding works on views.

    num_rollouts: consecutive rows with the same prompt. longest: maximum tokens of a row. seen: the rows' images, for a
    vision-language model.
    """

    cached = True

    def __init__(
        self,
        decoder: Decoder,
        history: TokenHistory,
        num_rollouts: int,
        longest: int,
        seen: SeenRows | None = None,
    ) -> None:
        if decoder.others:
            raise UnsupportedModelError(f"{', '.join(decoder.others)} keeps more than keys and values")
        self._decoder = decoder
        self._history = history
        self._num_rollouts = num_rollouts
        self._longest = longest
        self._seen = seen
        self._cache: RowCache | None = None
        self._graphs: DecodingGraphs | None = None
        """Graphs for the current cache, on CUDA."""
        self._row_at = np.zeros(0, dtype=np.int64)
        """The row at each place."""
        self._cached = np.zeros(len(history.length), dtype=np.int64)
        """Tokens of each row that the cache holds; 0 for a row without a place."""

    def prepare(self, rows: np.ndarray, capacity: int) -> tuple[np.ndarray, torch.Tensor]:
        """Prepare the next turn of `rows` (int64 `[n]`), with at most `capacity` tokens each.

        Returns the rows in the order of their places, and the logits `[n, V]` after each one's last token.
        """
        if self._cache is None:
            return self._begin(rows, capacity)
        placed = np.isin(rows, self._row_at)
        short = capacity > self._cache.capacity
        if short:
            capacity = max(capacity, min(int(GROWTH * self._cache.capacity), self._longest))
        if short or not placed.all() or 2 * len(rows) <= len(self._row_at):
            self._rebuild(self._cache, rows, placed, capacity)
        else:
            self._to_front(self._cache, np.isin(self._row_at, rows), len(rows))
        order = self._row_at[: len(rows)].copy()
        return order, self._feed_missing(self._cache, order)

    def feed(self, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Feed one more token in every place: tokens and positions int64 `[n, 1]`. Returns the logits `[n, V]`.

        length: at least one more than the largest position.
        """
        assert self._cache is not None, "`prepare` comes first"
        length, seen = min(length, self._cache.capacity), None
        if self._graphs is not None:
            return self._graphs.forward(tokens, positions, length)
        if self._seen is not None and self._seen.model.has_own_positions:
            offsets = torch.as_tensor(self._seen.offsets(self._row_at[: len(tokens)]), device=tokens.device)
            seen = SeenPass({}, (positions + offsets[:, None]).expand(3, -1, -1))
        return self._decoder.forward(tokens, positions, self._cache, length, seen)

    def fed(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Record the end of a turn. tokens: how many tokens of each row have been fed."""
        self._cached[rows] = tokens

    def compact(self, alive: torch.Tensor, num_alive: int) -> torch.Tensor:
        """Keep only the alive places (bool `[n]`). Returns the old place of each, int64 `[num_alive]`."""
        assert self._cache is not None, "`prepare` comes first"
        keep = np.zeros(len(self._row_at), dtype=bool)
        keep[: alive.numel()] = alive.cpu().numpy()
        holes, movers = self._to_front(self._cache, keep, num_alive)
        kept = torch.arange(num_alive)
        kept[holes] = movers
        return kept.to(alive.device)

    def clear(self) -> None:
        self._cache = self._graphs = None

    def _begin(self, rows: np.ndarray, capacity: int) -> tuple[np.ndarray, torch.Tensor]:
        """Encode each prompt once, and copy it to its rollouts."""
        seen_before = self._seen is not None and self._history.turns[rows].any()  # observations may differ in images
        firsts, source = self._history.alike(rows, 1 if seen_before else self._num_rollouts)
        cache = RowCache(self._decoder.num_layers, len(firsts), int(self._history.length[firsts].max()))
        logits = self._feed_missing(cache, firsts)
        shared = torch.as_tensor(source, device=logits.device)
        cache.keep(shared, capacity)
        self._cache, self._row_at = cache, rows.copy()
        self._renew_graphs(cache)
        self._cached[rows] = self._history.length[rows]
        return rows, logits[shared]

    def _rebuild(self, cache: RowCache, rows: np.ndarray, placed: np.ndarray, capacity: int) -> None:
        """Keep only these rows. Rows without a place get one, with no tokens held."""
        slots = {int(row): i for i, row in enumerate(self._row_at)}
        cache.keep(torch.tensor([slots.get(int(row), 0) for row in rows]), capacity)
        self._cached[np.setdiff1d(np.arange(len(self._cached)), rows[placed])] = 0
        self._row_at = rows.copy()
        self._renew_graphs(cache)

    def _renew_graphs(self, cache: RowCache) -> None:
        if self._decoder.device.type == "cuda" and self._seen is None:
            self._graphs = DecodingGraphs(self._decoder, cache)

    def _to_front(self, cache: RowCache, keep: np.ndarray, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Swap the unwanted places among the first `n` with the wanted ones behind them; return both."""
        holes, movers = np.nonzero(~keep[:n])[0], np.nonzero(keep[n:])[0] + n
        self._row_at[holes], self._row_at[movers] = self._row_at[movers], self._row_at[holes]
        first, second = torch.as_tensor(holes), torch.as_tensor(movers)
        if len(holes):
            cache.swap(first, second)
        return first, second

    def _feed_missing(self, cache: RowCache, order: np.ndarray) -> torch.Tensor:
        """Feed the tokens that the cache lacks, padded on the left; return the logits `[n, V]` after the last."""
        lengths, device = self._history.length[order], self._decoder.device
        cached = np.minimum(self._cached[order], lengths - 1)
        width = int((lengths - cached).max())
        position = lengths[:, None] - width + np.arange(width)
        position[position < cached[:, None]] = -1
        tokens = np.take_along_axis(self._history.ids[order], position.clip(0), axis=1).astype(np.int64)
        longest, seen = int(lengths.max()), None
        if self._seen is not None:
            tokens[position < 0] = 1 if self._seen.model.image_id == 0 else 0  # padding is never an image token
        fed = torch.as_tensor(tokens, device=device)
        if self._seen is not None:
            seen = self._seen.new_tokens(order, cached, fed, position, longest)
        return self._decoder.forward(fed, torch.as_tensor(position, device=device), cache, longest, seen)


class DecodingGraphs:
    """CUDA graphs of a decoder over the current storage of `cache`. Useless after a rebuild of the cache.

    A pass over one token per row launches hundreds of short kernels, and launching them from Python takes several times
    as long as running them. A graph launches all of them with one call. It is bound to a number of rows, a number of
    visible slots and the storage of one cache. Visible slots are rounded up, so that a few graphs serve a turn. The
    mask hides slots beyond a row's tokens. If a model's pass cannot be captured (for example, because it copies a
    number to the CPU), all passes run from Python.
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
