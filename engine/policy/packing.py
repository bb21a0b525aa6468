"""Packs trajectories into one row of tokens without duplicates or padding.

The rollouts of a group share their prompt, and rows differ in length. So a micro-batch is packed into one row of N
tokens: each distinct prompt once, then every rollout's own tokens. All layers that work per token run on these N
tokens. Only attention looks across tokens, and `attention_layout` defines which tokens each token attends to. Tokens
after the last scored one are dropped, since nothing depends on them. (Cf. Prefix Grouper, arXiv 2506.05433.)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .attention_layout import Cut, Layout, Pieces, lay_out, lay_out_last

if TYPE_CHECKING:
    from .vision.processor import ModelImage


@dataclass(frozen=True)
class Packing:
    """The layout of B trajectories in one packed row of N tokens.

    token_ids: long [1, N]. positions: long [1, N], or [3, 1, N] for a model with positions in time, height and width.
    layout: the rows of attention. last: those of the last layer, where only results of the kept tokens are defined.

    kept: long [K], the packed tokens whose last hidden state is read: the M scored tokens and their predecessors.
    before, itself: long [M], indices into `kept` of the token before each scored token and of the token itself. target:
    long [M], its id. row, column: long [M], its index in the padded [B, T] (`shape`).

    images: those in the packed row, in the order of their tokens; images of a shared prompt appear once.
    """

    token_ids: Tensor
    positions: Tensor
    layout: Layout
    last: Layout
    kept: Tensor
    before: Tensor
    itself: Tensor
    target: Tensor
    row: Tensor
    column: Tensor
    shape: tuple[int, int]
    images: tuple[ModelImage, ...] = ()

    def to(self, device: torch.device | str) -> Packing:
        moves = (Tensor, Layout)
        moved: dict[str, Any] = {k: v.to(device) if isinstance(v, moves) else v for k, v in vars(self).items()}
        return Packing(**moved)

    def pad(self, values: Tensor) -> Tensor:
        """Scatter scored values [M] to [B, T], with zeros elsewhere (differentiable)."""
        out = values.new_zeros(self.shape)
        return out.index_put((self.row, self.column), values)


@dataclass(frozen=True)
class SeenBatch:
    """Images of B trajectories: images[i] in the order of their tokens, positions[i]: long [3, T_i] (None: a token's
    position is its index). image_id: the id of an image token."""

    images: Sequence[Sequence[ModelImage]]
    image_id: int
    positions: Sequence[np.ndarray] | None = None

    def between(self, row: int, token_ids: np.ndarray, start: int, end: int) -> list[ModelImage]:
        """Return the images of row `row` whose tokens are in [start, end)."""
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
    """Lay out B trajectories. length: T of the padded result (default: the longest trajectory).

    token_ids[i]: int [T_i]. agent_mask[i]: bool [T_i], True on the scored tokens. A first token is never scored, since
    nothing comes before it. seen: their images; prompts are then shared only if these are equal as well.
    """
    scored = [np.flatnonzero(mask[1:]) + 1 for mask in agent_mask]
    rollouts, firsts = _cut(token_ids, scored, seen)
    prompts, own = rollouts.prompts, rollouts.own
    layout = lay_out(rollouts)
    last = lay_out_last(rollouts, [np.union1d(columns - 1, columns) for columns in scored], layout)

    row = np.repeat(np.arange(len(scored)), [len(columns) for columns in scored])
    column = np.concatenate(scored)
    cut = prompts.lengths[rollouts.prompt_of]
    before, itself = rollouts.places(row, column[:, None] + [-1, 0]).T
    kept, places = np.unique(np.concatenate([before, itself]), return_inverse=True)
    arrays = {
        "token_ids": np.concatenate([prompts.tokens, own.tokens])[None],
        "positions": np.concatenate([prompts.positions(), own.positions(cut)])[None],
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
    return Packing(layout=layout, last=last, shape=shape, images=tuple(images), **tensors)


def _cut(
    token_ids: Sequence[np.ndarray], scored: Sequence[np.ndarray], seen: SeenBatch | None
) -> tuple[Cut, list[int]]:
    """Return B rollouts up to their last scored token, with P distinct prompts, and the first rollout of each prompt.

    scored[i]: the scored columns of trajectory i. A trajectory without any is only a prompt.
    """
    prompts: dict[Hashable, np.ndarray] = {}
    number: dict[Hashable, int] = {}
    own, prompt_of, firsts = [], [], []
    for i, (ids, columns) in enumerate(zip(token_ids, scored, strict=True)):
        cut, end = (columns[0], columns[-1] + 1) if len(columns) else (len(ids), len(ids))
        prompt = np.ascontiguousarray(ids[:cut], dtype=np.int64)
        key: Hashable = prompt.tobytes()
        if seen is not None:
            key = (key, *(image.key for image in seen.between(i, ids, 0, cut)))
        if key not in prompts:
            prompts[key] = prompt
            firsts.append(i)
        prompt_of.append(number.setdefault(key, len(number)))
        own.append(np.asarray(ids[cut:end], dtype=np.int64))
    first = Pieces.of(list(prompts.values()), 0)
    return Cut(first, Pieces.of(own, len(first.tokens)), np.array(prompt_of)), firsts
