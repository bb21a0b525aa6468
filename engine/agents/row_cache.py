"""A KV cache with rows of different lengths. The slot of a key is its position in its conversation.

A token at position p of a row has slot p of that row, so rows have no gaps, and the mask is one comparison: slot <=
position. Slots beyond a row's length are never attended to, and are overwritten when the row grows. Padding goes to a
spare slot that is never read. Acting rows have the first places (`swap`), so that decoding works on views.
"""

from __future__ import annotations

import weakref

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

GROWTH = 64
"""Slots are allocated in multiples of this."""


class RowCache(Cache):
    """Keys and values of all layers for `rows` conversations of up to `capacity` tokens.

    `at` sets where a forward pass writes. Only models whose layers all keep keys and values are supported.
    """

    def __init__(self, num_layers: int, rows: int, capacity: int):
        self.rows = rows
        self.capacity = _rounded(capacity)
        self.active = rows
        """Rows of the current forward pass: the first `active`."""
        self.kv_length = 0
        """Slots that the current forward pass may attend to."""
        self._slots: torch.Tensor | None = None
        """Slot of every token of the current pass, `[active, q]`."""
        self._index: dict[int, torch.Tensor] = {}
        self._row_layers = [RowLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self._row_layers))

    @property
    def stride(self) -> int:
        return self.capacity + 1

    def at(self, positions: torch.Tensor, kv_length: int) -> torch.Tensor:
        """Set where the next forward pass writes, and return its mask.

        positions: int64 `[n, q]`, of each token of the first n rows; negative for padding. kv_length: at least one more
        than the largest position, at most the capacity. Returns bool `[n, 1, q, kv_length]`, True where a query may
        attend.
        """
        self._slots = torch.where(positions < 0, self.capacity, positions)
        self._index.clear()
        self.active, self.kv_length = positions.shape[0], kv_length
        keys = torch.arange(kv_length, device=positions.device)
        # Padding attends to slot 0: a mask row without any True would give NaN.
        return (keys <= positions.clamp_min(0)[..., None])[:, None]

    def index(self, heads: int) -> torch.Tensor:
        """Return where the current pass writes in a flattened storage of `heads` heads, int64 `[active * heads * q]`.

        Layers with the same number of heads share it.
        """
        if heads not in self._index:
            assert self._slots is not None, "`at` comes first"
            n = self._slots.shape[0]
            base = torch.arange(n * heads, device=self._slots.device).view(n, heads, 1) * self.stride
            self._index[heads] = (base + self._slots[:, None]).flatten()
        return self._index[heads]

    def keep(self, rows: torch.Tensor, capacity: int) -> None:
        """Keep only these rows (int64 `[k]`, possibly repeated), in this order, with room for `capacity` tokens."""
        kept = min(self.capacity, _rounded(capacity))
        self.rows, self.capacity = int(rows.numel()), _rounded(capacity)
        for layer in self._row_layers:
            layer.keys = _resized(layer.keys, rows, kept, self.stride)
            layer.values = _resized(layer.values, rows, kept, self.stride)

    def reserve(self, rows: int, capacity: int, like: RowCache | None = None) -> None:
        """Make room for `rows` rows of `capacity` tokens and keep the content. like: a filled cache of the same model,
        for the shapes of an empty one."""
        stride = _rounded(capacity) + 1
        used, kept = self.rows, min(self.capacity, _rounded(capacity))
        for layer, other in zip(self._row_layers, like._row_layers if like else self._row_layers, strict=True):
            old = layer.keys, layer.values
            for name, storage, shape in zip(("keys", "values"), old, (other.keys, other.values), strict=True):
                assert shape is not None
                new = shape.new_zeros(rows, shape.shape[1], stride, shape.shape[3])
                if storage is not None and used:
                    new[:used, :, :kept] = storage[:, :, :kept]
                setattr(layer, name, new)
            layer.is_initialized = True
        self.rows, self.capacity = rows, stride - 1

    def copy_row(self, source: RowCache, slot: int, to: int) -> None:
        kept = min(source.capacity, self.capacity)
        for layer, other in zip(self._row_layers, source._row_layers, strict=True):
            assert layer.keys is not None and layer.values is not None
            assert other.keys is not None and other.values is not None
            layer.keys[to, :, :kept] = other.keys[slot, :, :kept]
            layer.values[to, :, :kept] = other.values[slot, :, :kept]

    def swap(self, first: torch.Tensor, second: torch.Tensor) -> None:
        """Exchange the rows `first` with the rows `second`, pairwise (disjoint, int64 `[k]`)."""
        for layer in self._row_layers:
            for storage in (layer.keys, layer.values):
                if storage is not None:
                    moved = storage[first]
                    storage[first] = storage[second]
                    storage[second] = moved


class RowLayer(CacheLayerMixin):
    """One layer: `keys` and `values` are `[rows, heads, slots, head_dim]`, contiguous per head."""

    is_sliding = False

    def __init__(self, cache: RowCache):
        super().__init__()
        # A strong reference would make a cycle, and gigabytes would wait for the garbage collector.
        self.cache: RowCache = weakref.proxy(cache)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate zeros once the shapes are known, since masked values must be finite."""
        rows, slots = self.cache.rows, self.cache.stride
        # Keys rotated in float32 are stored in the format of the values.
        self.keys = value_states.new_zeros(rows, key_states.shape[1], slots, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], slots, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[n, heads, q, head_dim]`; return views `[n, heads, kv_length, head_dim]` of all visible slots."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, storage: torch.Tensor | None, states: torch.Tensor) -> torch.Tensor:
        assert storage is not None
        cache = self.cache
        storage.view(-1, storage.shape[-1]).index_copy_(
            0, cache.index(storage.shape[1]), states.flatten(0, 2).to(storage.dtype)
        )
        return storage[: cache.active, :, : cache.kv_length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.kv_length, 0

    def get_seq_length(self) -> int:
        return self.cache.kv_length

    def get_max_length(self) -> int:
        return -1


def _rounded(capacity: int) -> int:
    return -(-capacity // GROWTH) * GROWTH


def _resized(storage: torch.Tensor | None, rows: torch.Tensor, kept: int, stride: int) -> torch.Tensor | None:
    if storage is None:
        return None
    new = storage.new_empty(rows.numel(), storage.shape[1], stride, storage.shape[3])
    stays = rows.numel() == storage.shape[0] and bool((rows == torch.arange(rows.numel(), device=rows.device)).all())
    new[:, :, :kept] = storage[:, :, :kept] if stays else storage[:, :, :kept][rows.to(storage.device)]
    new[:, :, kept:] = 0
    return new
