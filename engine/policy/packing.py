"""How many trajectories lie in one row of tokens that holds no token twice and no padding at all.

The rollouts of a group share their prompt, and rows differ in length. So a micro-batch is packed into one row of N
tokens: each different prompt once, then every rollout's own tokens. All layers that work per token run on these N
tokens; only attention looks across tokens, and is told by `Packing` who may see whom:

    short prompts: each rollout as a row of its prompt and its own tokens, causally        [b, L]
    long prompts:  each prompt as a row, causally                                          [g, P]
                   a rollout's own tokens over its prompt and themselves, by a mask        [b, C] over [b, P + C]

Rows of similar length go together, so that little of a block is padding. Tokens after the last one that is scored are
left out: nothing depends on them. (Sharing prompts in training: Prefix Grouper, arXiv 2506.05433.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from .sight.processor import ModelImage


@dataclass(frozen=True)
class Block:
    """Some rows of attention. query: long [b, Q], key: long [b, K], positions in the packed row (padding points
    anywhere). allowed: bool [b, 1, Q, K], or None for causal attention over the same tokens (K = Q)."""

    query: Tensor
    key: Tensor
    allowed: Tensor | None


@dataclass(frozen=True)
class Packing:
    """How B trajectories lie in one packed row of N tokens.

    token_ids: long [1, N]. positions: long [1, N], or [3, 1, N] for a model with positions in time, height and width.
    blocks: the rows of attention; out: long [N], where each packed token's result
    lies in the results of all blocks, flattened and one after another.

    kept: long [K], the packed tokens whose last hidden state is read: the M scored tokens and those before them. Of
    each scored token: before, itself: long [M], places in `kept` of the token before it and of itself; target: long
    [M], its id; row, column: long [M], where it stands in the padded [B, T] (`shape`).

    images: those that stand in the packed row, in the order of their tokens; a shared prompt's once.
    """

    token_ids: Tensor
    positions: Tensor
    blocks: tuple[Block, ...]
    out: Tensor
    kept: Tensor
    before: Tensor
    itself: Tensor
    target: Tensor
    row: Tensor
    column: Tensor
    shape: tuple[int, int]
    images: tuple[ModelImage, ...] = ()

    def to(self, device: torch.device | str) -> Packing:
        """The same on `device`."""
        moved: dict[str, Any] = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in vars(self).items()}
        moved["blocks"] = tuple(
            Block(b.query.to(device), b.key.to(device), None if b.allowed is None else b.allowed.to(device))
            for b in self.blocks
        )
        return Packing(**moved)

    def pad(self, values: Tensor) -> Tensor:
        """Scored values [M] as [B, T] with zeros elsewhere; differentiable."""
        out = values.new_zeros(self.shape)
        return out.index_put((self.row, self.column), values)


@dataclass(frozen=True)
class SeenBatch:
    """Images of B trajectories: images[i] in the order of their tokens, positions[i]: long [3, T_i] (None: a token's
    position is its place). image_id: the token that stands for a piece of an image."""

    images: Sequence[Sequence[ModelImage]]
    image_id: int
    positions: Sequence[np.ndarray] | None = None

    def between(self, row: int, token_ids: np.ndarray, start: int, end: int) -> list[ModelImage]:
        """Those of row `row` whose tokens lie in [start, end)."""
        if not self.images[row]:
            return []
        before = int((token_ids[:start] == self.image_id).sum())
        until = int((token_ids[:end] == self.image_id).sum())
        ends = np.cumsum([image.tokens for image in self.images[row]])
        return [image for image, last in zip(self.images[row], ends.tolist(), strict=True) if before < last <= until]


def pack(
    token_ids: Sequence[np.ndarray],
    agent_mask: Sequence[np.ndarray],
    length: int | None = None,
    seen: SeenBatch | None = None,
) -> Packing:
    """Lay out B trajectories; `length` is T of the padded result (default: the longest trajectory).

    token_ids[i]: int [T_i]; agent_mask[i]: bool [T_i], True on the tokens that are scored. A first token is never
    scored: nothing comes before it. seen: their images; prompts are then shared where these are equal, too.
    """
    scored = [np.flatnonzero(mask[1:]) + 1 for mask in agent_mask]
    prompts, own, prompt_of, firsts = _cut(token_ids, scored, seen)
    blocks, out = _attention(prompts, own, prompt_of)

    row = np.repeat(np.arange(len(scored)), [len(columns) for columns in scored])
    column = np.concatenate(scored)
    cut = prompts.lengths[prompt_of]
    itself = own.starts[row] + column - cut[row]
    # The first scored token of a trajectory follows its prompt, which lies elsewhere.
    before = np.where(column == cut[row], (prompts.starts + prompts.lengths)[prompt_of[row]], itself) - 1
    kept, places = np.unique(np.concatenate([before, itself]), return_inverse=True)
    arrays = {
        "token_ids": np.concatenate([prompts.tokens, own.tokens])[None],
        "positions": np.concatenate([prompts.positions(), own.positions(cut)])[None],
        "out": out,
        "kept": kept,
        "before": places[: len(row)],
        "itself": places[len(row) :],
        "target": np.concatenate([ids[columns] for ids, columns in zip(token_ids, scored, strict=True)]),
        "row": row,
        "column": column,
    }
    images: list[ModelImage] = []
    if seen is not None:
        spans = [(row, 0, int(prompts.lengths[i])) for i, row in enumerate(firsts)]
        spans += [(row, int(cut[row]), int(cut[row] + own.lengths[row])) for row in range(len(scored))]
        images = [image for row, start, end in spans for image in seen.between(row, token_ids[row], start, end)]
        if seen.positions is not None:
            parts = [seen.positions[row][:, start:end] for row, start, end in spans]
            arrays["positions"] = np.concatenate(parts, axis=1)[:, None]
    tensors = {name: torch.from_numpy(array.astype(np.int64, copy=False)) for name, array in arrays.items()}
    shape = (len(token_ids), length or max(map(len, token_ids)))
    return Packing(blocks=blocks, shape=shape, images=tuple(images), **tensors)


@dataclass(frozen=True)
class _Pieces:
    """Consecutive pieces of the packed row: piece i has lengths[i] tokens from place starts[i] on (long [pieces])."""

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, pieces: Sequence[np.ndarray], first: int) -> Self:
        """The pieces one after another, from place `first` of the packed row on."""
        lengths = np.array([len(piece) for piece in pieces])
        return cls(np.concatenate(pieces), first + np.cumsum(lengths) - lengths, lengths)

    def positions(self, offset: np.ndarray | int = 0) -> np.ndarray:
        """The position of each token within its piece, plus the piece's offset, long [tokens]."""
        return np.arange(len(self.tokens)) - np.repeat(self.starts - self.starts[:1] - offset, self.lengths)


def _cut(
    token_ids: Sequence[np.ndarray], scored: Sequence[np.ndarray], seen: SeenBatch | None
) -> tuple[_Pieces, _Pieces, np.ndarray, list[int]]:
    """P different prompts, B rollouts' own tokens up to the last scored one, whose prompt is which (long [B]), and the
    first rollout of each prompt.

    scored[i]: the columns of trajectory i that are scored. One without any is a prompt and nothing else.
    """
    prompts: dict[Hashable, np.ndarray] = {}
    number: dict[Hashable, int] = {}
    own, prompt_of, firsts = [], [], []
    for i, (ids, columns) in enumerate(zip(token_ids, scored, strict=True)):
        cut, end = (columns[0], columns[-1] + 1) if len(columns) else (len(ids), len(ids))
        prompt = np.ascontiguousarray(ids[:cut], dtype=np.int64)
        key = _prompt_key(prompt, i)
        if seen is not None:
            key = (key, *(image.key for image in seen.between(i, ids, 0, cut)))
        if key not in prompts:
            prompts[key] = prompt
            firsts.append(i)
        prompt_of.append(number.setdefault(key, len(number)))
        own.append(np.asarray(ids[cut:end], dtype=np.int64))
    first = _Pieces.of(list(prompts.values()), 0)
    return first, _Pieces.of(own, len(first.tokens)), np.array(prompt_of), firsts


def _prompt_key(prompt: np.ndarray, row: int) -> Hashable:
    """Rows with equal keys share one copy of their prompt."""
    return prompt.tobytes()


class _Rows(NamedTuple):
    """Places in the packed row as rows of attention: long [b, L]; `real`: bool [b, L], False on padding."""

    places: np.ndarray
    real: np.ndarray

    @classmethod
    def of(cls, starts: np.ndarray, lengths: np.ndarray) -> Self:
        """Row i: lengths[i] consecutive places from starts[i] on."""
        columns = np.arange(int(lengths.max()))
        real = columns < lengths[:, None]
        return cls(np.where(real, starts[:, None] + columns, 0), real)


class _Attention(NamedTuple):
    """A block before it is a tensor: `queries` attend causally to themselves, and before that to `context`."""

    queries: _Rows
    context: _Rows | None = None

    def block(self) -> Block:
        """The same as tensors."""
        query = torch.from_numpy(self.queries.places)
        if self.context is None:
            return Block(query, query, None)
        b, width = self.queries.places.shape
        allowed = np.concatenate(
            [
                np.broadcast_to(self.context.real[:, None, :], (b, width, self.context.real.shape[1])),
                np.broadcast_to(np.tril(np.ones((width, width), bool)), (b, width, width)),
            ],
            axis=2,
        )
        key = torch.from_numpy(np.concatenate([self.context.places, self.queries.places], 1))
        return Block(query, key, torch.from_numpy(allowed)[:, None])


def _attention(prompts: _Pieces, own: _Pieces, prompt_of: np.ndarray) -> tuple[tuple[Block, ...], np.ndarray]:
    """The rows of attention, in the cheaper of the two ways, and where each packed token's result is (long [N])."""
    prompt_lengths = prompts.lengths[prompt_of]
    length = prompt_lengths + own.lengths
    whole = (length**2).sum() / 2  # a causal kernel skips half
    apart = (prompts.lengths**2).sum() / 2 + (own.lengths * length).sum()
    attentions = list(_whole(prompts, own, prompt_of) if whole <= apart else _apart(prompts, own, prompt_of))
    out, done = np.zeros(len(prompts.tokens) + len(own.tokens), np.int64), 0
    for queries, _ in attentions:
        # Where a prompt lies in several rows, its results are the same in all of them.
        out[queries.places[queries.real]] = done + np.flatnonzero(queries.real)
        done += queries.real.size
    return tuple(a.block() for a in attentions), out


def _whole(prompts: _Pieces, own: _Pieces, prompt_of: np.ndarray) -> Iterable[_Attention]:
    """Each rollout as a row of its prompt and its own tokens."""
    length = prompts.lengths[prompt_of] + own.lengths
    for rows in _alike(length):
        prompt = prompt_of[rows]
        columns, cut = np.arange(int(length[rows].max())), prompts.lengths[prompt][:, None]
        places = np.where(
            columns < cut, prompts.starts[prompt][:, None] + columns, own.starts[rows][:, None] + columns - cut
        )
        real = columns < length[rows][:, None]
        yield _Attention(_Rows(np.where(real, places, 0), real))


def _apart(prompts: _Pieces, own: _Pieces, prompt_of: np.ndarray) -> Iterable[_Attention]:
    """Each prompt once, and each rollout's own tokens over its prompt and themselves."""
    for rows in _alike(prompts.lengths):
        yield _Attention(_Rows.of(prompts.starts[rows], prompts.lengths[rows]))
    for rows in _alike(own.lengths):
        prompt = prompt_of[rows]
        if own.lengths[rows].any():
            context = _Rows.of(prompts.starts[prompt], prompts.lengths[prompt])
            yield _Attention(_Rows.of(own.starts[rows], own.lengths[rows]), context)


_ALIKE = 0.8
"""Shortest length of a group, as a part of its longest."""


def _alike(lengths: np.ndarray) -> list[np.ndarray]:
    """Rows in groups of similar length: the shortest of a group has at least `_ALIKE` of the longest."""
    order = np.argsort(-lengths, kind="stable")
    groups: list[list[int]] = []
    longest = -1.0
    for row in order.tolist():
        if not groups or lengths[row] < _ALIKE * longest:
            groups.append([])
            longest = float(lengths[row])
        groups[-1].append(row)
    return [np.array(g) for g in groups]
