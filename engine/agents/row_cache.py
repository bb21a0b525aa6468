"""A KV cache whose rows have lengths of their own: the slot of a key is its position in its conversation.

Rows of a batch of conversations grow apart after the first turn. Here a token at position p of a row lies in slot p of
that row, so no row has gaps, and "may attend" is one comparison: slot <= position. What lies beyond a row's length is
never attended and is overwritten when the row grows; padding goes to a spare slot that nobody reads.

The rows that act now stand in front (`swap`), so that a decoding step works on views, not on copies.
"""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

GROWTH = 64
"""Slots are allocated in multiples of this."""


class RowCache(Cache):
    """Keys and values of all layers for `rows` conversations of up to `capacity` tokens.

    Before each forward pass say where it writes with `at`. Only models whose layers all keep keys and values
    (no recurrent state) fit.
    """

    def __init__(self, num_layers: int, rows: int, capacity: int):
        self.rows = rows
        self.capacity = _rounded(capacity)
        self.active = rows
        """Rows of the current forward pass: the first `active`."""
        self.kv_length = 0
        """Slots that the current forward pass may see."""
        self._slots: torch.Tensor | None = None
        """Slot of every token of the current pass, `[active, q]`."""
        self._index: dict[int, torch.Tensor] = {}
        self._row_layers = [RowLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self._row_layers))

    @property
    def stride(self) -> int:
        """Slots a row, the spare one included."""
        return self.capacity + 1

    def at(self, positions: torch.Tensor, kv_length: int) -> torch.Tensor:
        """Set where the next forward pass writes, and return its mask.

        positions: int64 `[n, q]`, position of each token of the first n rows; negative means padding.
        kv_length: at least one more than the largest position, at most the capacity.
        Returns: bool `[n, 1, q, kv_length]`, True where a query may attend.
        """
        self._slots = torch.where(positions < 0, self.capacity, positions)
        self._index.clear()
        self.active, self.kv_length = positions.shape[0], kv_length
        keys = torch.arange(kv_length, device=positions.device)
        # Padding looks at slot 0: a row of the mask without any True would make NaN.
        return (keys <= positions.clamp_min(0)[..., None])[:, None]

    def index(self, heads: int) -> torch.Tensor:
        """Where the current pass writes in a storage of so many heads, flattened: int64 `[active * heads * q]`.

        Layers with equally many heads share it.
        """
        if heads not in self._index:
            assert self._slots is not None, "`at` comes first"
            n = self._slots.shape[0]
            base = torch.arange(n * heads, device=self._slots.device).view(n, heads, 1) * self.stride
            self._index[heads] = (base + self._slots[:, None]).flatten()
        return self._index[heads]

    def keep(self, rows: torch.Tensor, capacity: int) -> None:
        """Keep only these rows (int64 `[k]`; one may come several times), in this order, with room for `capacity`."""
        kept = min(self.capacity, _rounded(capacity))
        self.rows, self.capacity = int(rows.numel()), _rounded(capacity)
        for layer in self._row_layers:
            layer.keys = _resized(layer.keys, rows, kept, self.stride)
            layer.values = _resized(layer.values, rows, kept, self.stride)

    def reserve(self, rows: int, capacity: int, like: RowCache | None = None) -> None:
        """Make room for `rows` rows of `capacity` tokens; what the present rows hold stays. like: a cache of the same
        model with content, for the shapes of a cache that has none."""
        stride = _rounded(capacity) + 1
        held, kept = self.rows, min(self.capacity, _rounded(capacity))
        for layer, other in zip(self._row_layers, like._row_layers if like else self._row_layers, strict=True):
            old = layer.keys, layer.values
            for name, storage, shape in zip(("keys", "values"), old, (other.keys, other.values), strict=True):
                assert shape is not None
                new = shape.new_zeros(rows, shape.shape[1], stride, shape.shape[3])
                if storage is not None and held:
                    new[:held, :, :kept] = storage[:, :, :kept]
                setattr(layer, name, new)
            layer.is_initialized = True
        self.rows, self.capacity = rows, stride - 1

    def copy_row(self, source: RowCache, place: int, to: int) -> None:
        """Copy a row of `source` to place `to` of this cache, as far as both reach."""
        kept = min(source.capacity, self.capacity)
        for layer, other in zip(self._row_layers, source._row_layers, strict=True):
            assert layer.keys is not None and layer.values is not None
            assert other.keys is not None and other.values is not None
            layer.keys[to, :, :kept] = other.keys[place, :, :kept]
            layer.values[to, :, :kept] = other.values[place, :, :kept]

    def swap(self, first: torch.Tensor, second: torch.Tensor) -> None:
        """Exchange the rows `first` with the rows `second`, pairwise (disjoint, int64 `[k]`)."""
        for layer in self._row_layers:
            for storage in (layer.keys, layer.values):
                if storage is not None:
                    moved = storage[first]
                    storage[first] = storage[second]
                    storage[second] = moved


class RowLayer(CacheLayerMixin):
    """One layer: `keys` and `values` are `[rows, heads, slots, head_dim]`; a head's slots lie together."""

    is_sliding = False

    def __init__(self, cache: RowCache):
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate, once the shapes are known. Zeros: what is masked out must still be finite."""
        rows, slots = self.cache.rows, self.cache.stride
        # Keys that were rotated in float32 are kept in the format of the values.
        self.keys = value_states.new_zeros(rows, key_states.shape[1], slots, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], slots, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[n, heads, q, head_dim]`; returns views `[n, heads, kv_length, head_dim]` of all that may be seen."""
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
        """Length and offset of what a mask covers."""
        return self.cache.kv_length, 0

    def get_seq_length(self) -> int:
        """Slots in sight; positions are always given, so no model counts by this."""
        return self.cache.kv_length

    def get_max_length(self) -> int:
        """No maximum: the cache grows."""
        return -1


def _rounded(capacity: int) -> int:
    return -(-capacity // GROWTH) * GROWTH


def _resized(storage: torch.Tensor | None, rows: torch.Tensor, kept: int, stride: int) -> torch.Tensor | None:
    if storage is None:
        return None
    new = storage.new_empty(rows.numel(), storage.shape[1], stride, storage.shape[3])
    stays = rows.numel() == storage.shape[0] and bool((rows == torch.arange(rows.numel())).all())
    new[:, :, :kept] = storage[:, :, :kept] if stays else storage[:, :, :kept][rows.to(storage.device)]
    new[:, :, kept:] = 0
    return new
