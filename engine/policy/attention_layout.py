"""Attention over a packed row of tokens (`packing`), laid out as separate blocks of rows.

    short prompts: each rollout as a row of its prompt and its own tokens, causally        [b, L]
    long prompts:  each prompt as a row, causally                                          [g, P]
                   a rollout's own tokens over its prompt and themselves, by a mask        [b, C] over [b, P + C]
    last layer:    the tokens that are read over all that came before them, by a mask, one stretch of each rollout
                   after another                                                           [b, K] over [b, E]
    windows:       in a layer with sliding attention, each stretch of a rollout over itself and the window before it,
                   by a mask                                                               [b, W] over [b, 2 W - 1]

A block holds rows of similar length, to limit padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

_ALIKE = 0.8
"""Shortest length of a group, as a fraction of its longest."""
_STRETCHES = 4
"""Pieces into which the last layer cuts a rollout. Tokens of one piece do not attend to later pieces."""
_SHORTEST = 64
"""Tokens of the shortest piece into which a layer with sliding attention cuts a rollout."""


@dataclass(frozen=True)
class AttentionBlock:
    """Some rows of attention. query: long [b, Q], key: long [b, K], positions in the packed row (padding points
    anywhere). allowed: bool [b, 1, Q, K], or None for causal attention over the same tokens (K = Q)."""

    query: Tensor
    key: Tensor
    allowed: Tensor | None

    @property
    def cost(self) -> float:
        """The number of token pairs. A causal kernel skips half."""
        return self.query.numel() * self.key.shape[1] * (0.5 if self.allowed is None else 1.0)

    def to(self, device: torch.device | str) -> AttentionBlock:
        allowed = None if self.allowed is None else self.allowed.to(device)
        return AttentionBlock(self.query.to(device), self.key.to(device), allowed)


@dataclass(frozen=True)
class Layout:
    """out: long [N], the index of each packed token's result in the concatenated, flattened results of all blocks.
    longest: tokens of the longest rollout. sliding: makes the layout for a shorter window."""

    blocks: tuple[AttentionBlock, ...]
    out: Tensor
    longest: int
    sliding: Callable[[int], Layout]

    def within(self, window: int | None) -> Layout:
        """Limit each token to the last `window` tokens, itself included (None: no limit)."""
        return self if window is None or window >= self.longest else self.sliding(window)

    @property
    def cost(self) -> float:
        return sum(block.cost for block in self.blocks)

    def to(self, device: torch.device | str) -> Layout:
        blocks = tuple(block.to(device) for block in self.blocks)
        return Layout(blocks, self.out.to(device), self.longest, cache(lambda window: self.sliding(window).to(device)))


@dataclass(frozen=True)
class Pieces:
    """Consecutive pieces of the packed row: piece i has lengths[i] tokens from index starts[i] on (long [pieces])."""

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, pieces: Sequence[np.ndarray], first: int) -> Self:
        """Place the pieces one after another, from index `first` of the packed row."""
        lengths = np.array([len(piece) for piece in pieces])
        return cls(np.concatenate(pieces), first + np.cumsum(lengths) - lengths, lengths)

    def positions(self, offset: np.ndarray | int = 0) -> np.ndarray:
        """Return the position of each token within its piece, plus the piece's offset, long [tokens]."""
        return np.arange(len(self.tokens)) - np.repeat(self.starts - self.starts[:1] - offset, self.lengths)


@dataclass(frozen=True)
class Cut:
    """B rollouts, each with a prompt that others may share and its own tokens. prompt_of: long [B]."""

    prompts: Pieces
    own: Pieces
    prompt_of: np.ndarray

    @property
    def tokens(self) -> int:
        """Tokens of the packed row, N."""
        return len(self.prompts.tokens) + len(self.own.tokens)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each rollout with its prompt, long [B]."""
        return self.prompts.lengths[self.prompt_of] + self.own.lengths

    def places(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return packed indices, long [b, P], of tokens at `positions` (long [P] or [b, P]) of rollouts `rows` [b]."""
        prompt = self.prompt_of[rows]
        cut = self.prompts.lengths[prompt][:, None]
        shared, own = self.prompts.starts[prompt][:, None], self.own.starts[rows][:, None] - cut
        return np.where(positions < cut, shared, own) + positions


class _Rows(NamedTuple):
    """Packed indices as rows of attention: long [b, L]; `real`: bool [b, L], False on padding."""

    places: np.ndarray
    real: np.ndarray

    @classmethod
    def of(cls, starts: np.ndarray, lengths: np.ndarray) -> Self:
        """Make row i from lengths[i] consecutive indices starting at starts[i]."""
        columns = np.arange(int(lengths.max()))
        real = columns < lengths[:, None]
        return cls(np.where(real, starts[:, None] + columns, 0), real)


class _Attention(NamedTuple):
    """A block before conversion to tensors: `queries` attend to `keys` (long [b, K]) where `allowed` (bool [b, Q, K]),
    or causally to themselves."""

    queries: _Rows
    keys: np.ndarray | None = None
    allowed: np.ndarray | None = None

    def block(self) -> AttentionBlock:
        query = torch.from_numpy(self.queries.places)
        if self.keys is None or self.allowed is None:
            return AttentionBlock(query, query, None)
        return AttentionBlock(query, torch.from_numpy(self.keys), torch.from_numpy(self.allowed)[:, None])


def lay_out(cut: Cut) -> Layout:
    """Lay out attention for all tokens, in the cheaper of the two ways."""
    length = cut.lengths
    dense = (length**2).sum() / 2  # a causal kernel skips half
    split = (cut.prompts.lengths**2).sum() / 2 + (cut.own.lengths * length).sum()
    # The tokens of a shared prompt are those of its first rollout.
    _, firsts = np.unique(cut.prompt_of, return_index=True)
    starts = cut.prompts.lengths[cut.prompt_of]
    starts[firsts] = 0
    every = [np.arange(start, end) for start, end in zip(starts.tolist(), length.tolist(), strict=True)]
    return _layout(cut, every, _dense(cut) if dense <= split else _split(cut))


def lay_out_last(cut: Cut, read: Sequence[np.ndarray], every: Layout) -> Layout:
    """Lay out attention for the tokens used after the last layer. Results of other tokens are undefined.

    read[i]: their positions in rollout i, ascending long. every: the layout of all tokens, returned if this one is no
    cheaper.
    """
    last = _layout(cut, read, _read(cut, read))
    return last if last.blocks and last.cost < every.cost else every


def _layout(cut: Cut, read: Sequence[np.ndarray], attentions: Iterable[_Attention]) -> Layout:
    """Lay out `attentions`. read[i]: the positions in rollout i whose results are used."""
    attentions = list(attentions)
    out, done = np.zeros(cut.tokens, np.int64), 0
    for queries, *_ in attentions:
        # If a token lies in several rows, its results are the same in all of them.
        out[queries.places[queries.real]] = done + np.flatnonzero(queries.real)
        done += queries.real.size
    blocks = tuple(a.block() for a in attentions)
    sliding = cache(lambda window: _layout(cut, read, _read(cut, read, window)))
    return Layout(blocks, torch.from_numpy(out), int(cut.lengths.max()), sliding)


def _dense(cut: Cut) -> Iterable[_Attention]:
    """Lay out each rollout as a row of its prompt and its own tokens."""
    length = cut.lengths
    for rows in _by_length(length):
        columns = np.arange(int(length[rows].max()))
        real = columns < length[rows][:, None]
        yield _Attention(_Rows(np.where(real, cut.places(rows, columns), 0), real))


def _split(cut: Cut) -> Iterable[_Attention]:
    """Lay out each prompt once, and each rollout's own tokens over its prompt and themselves."""
    prompts, own = cut.prompts, cut.own
    for rows in _by_length(prompts.lengths):
        yield _Attention(_Rows.of(prompts.starts[rows], prompts.lengths[rows]))
    for rows in _by_length(own.lengths):
        prompt = cut.prompt_of[rows]
        if own.lengths[rows].any():
            context = _Rows.of(prompts.starts[prompt], prompts.lengths[prompt])
            queries = _Rows.of(own.starts[rows], own.lengths[rows])
            b, width = queries.places.shape
            before = np.broadcast_to(context.real[:, None, :], (b, width, context.real.shape[1]))
            among = np.broadcast_to(np.tril(np.ones((width, width), bool)), (b, width, width))
            keys = np.concatenate([context.places, queries.places], 1)
            yield _Attention(queries, keys, np.concatenate([before, among], axis=2))


def _read(cut: Cut, read: Sequence[np.ndarray], window: int | None = None) -> Iterable[_Attention]:
    """Lay out the used positions, over all earlier tokens or those of the window."""
    lengths = cut.lengths
    for group in _by_length(lengths):
        longest = int(lengths[group].max())
        stretches = _STRETCHES if window is None else -(-longest // max(window, _SHORTEST))
        edges = np.linspace(0, longest, stretches + 1).round().astype(np.int64)
        for start, end in pairwise(edges.tolist()):
            inside = {row: read[row][(read[row] >= start) & (read[row] < end)] for row in group.tolist()}
            rows = np.array([row for row, positions in inside.items() if len(positions)], dtype=np.int64)
            if not len(rows):
                continue
            count = np.array([len(inside[row]) for row in rows.tolist()])
            real = np.arange(int(count.max())) < count[:, None]
            positions = np.zeros(real.shape, np.int64)
            positions[real] = np.concatenate([inside[row] for row in rows.tolist()])
            positions[~real] = start  # padding attends to something: a mask row without any True would give NaN
            columns = np.arange(0 if window is None else max(0, start - window + 1), end)
            keys = np.where(columns < lengths[rows][:, None], cut.places(rows, columns), 0)
            allowed = columns <= positions[..., None]
            if window is not None:
                allowed &= columns > positions[..., None] - window
            yield _Attention(_Rows(cut.places(rows, positions), real), keys, allowed)


def _by_length(lengths: np.ndarray) -> list[np.ndarray]:
    """Group rows of similar length: the shortest has at least `_ALIKE` of the longest."""
    order = np.argsort(-lengths, kind="stable")
    groups: list[list[int]] = []
    longest = -1.0
    for row in order.tolist():
        if not groups or lengths[row] < _ALIKE * longest:
            groups.append([])
            longest = float(lengths[row])
        groups[-1].append(row)
    return [np.array(g) for g in groups]
