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

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


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

    token_ids, positions: long [1, N]. blocks: the rows of attention; out: long [N], where each packed token's result
    lies in the results of all blocks, flattened and one after another.

    kept: long [K], the packed tokens whose last hidden state is read: the M scored tokens and those before them. Of
    each scored token: before, itself: long [M], places in `kept` of the token before it and of itself; target: long
    [M], its id; row, column: long [M], where it stands in the padded [B, T] (`shape`).
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


def pack(token_ids: Sequence[np.ndarray], agent_mask: Sequence[np.ndarray], length: int | None = None) -> Packing:
    """Lay out B trajectories; `length` is T of the padded result (default: the longest trajectory).

    token_ids[i]: int [T_i]; agent_mask[i]: bool [T_i], True on the tokens that are scored. A first token is never
    scored: nothing comes before it.
    """
    rows = len(token_ids)
    prompts: dict[Hashable, int] = {}
    prompt_rows: list[np.ndarray] = []
    parent = np.zeros(rows, np.int64)
    own: list[np.ndarray] = []
    cuts = np.zeros(rows, np.int64)
    for i, (ids, mask) in enumerate(zip(token_ids, agent_mask, strict=True)):
        scored = np.flatnonzero(mask[1:]) + 1
        cut = int(scored[0]) if len(scored) else len(ids)
        end = int(scored[-1]) + 1 if len(scored) else cut
        prompt = np.ascontiguousarray(ids[:cut], dtype=np.int64)
        key = _prompt_key(prompt, i)
        if key not in prompts:
            prompts[key] = len(prompts)
            prompt_rows.append(prompt)
        parent[i], cuts[i] = prompts[key], cut
        own.append(np.asarray(ids[cut:end], dtype=np.int64))

    prompt_lengths = np.array([len(p) for p in prompt_rows])
    own_lengths = np.array([len(r) for r in own])
    prompt_start = np.concatenate([[0], np.cumsum(prompt_lengths)])
    own_start = prompt_start[-1] + np.concatenate([[0], np.cumsum(own_lengths)])
    blocks, out = _blocks(parent, prompt_start, prompt_lengths, own_start, own_lengths)

    positions = [np.arange(n) for n in prompt_lengths] + [
        c + np.arange(n) for c, n in zip(cuts, own_lengths, strict=True)
    ]
    before, itself, target, row, column = [], [], [], [], []
    for i, (ids, mask) in enumerate(zip(token_ids, agent_mask, strict=True)):
        scored = np.flatnonzero(mask[1:]) + 1
        if not len(scored):
            continue
        place = scored - cuts[i] + own_start[i]
        itself.append(place)
        before.append(place - 1)
        before[-1][0] = prompt_start[parent[i]] + cuts[i] - 1  # the first scored token follows the prompt
        target.append(np.asarray(ids)[scored])
        row.append(np.full(len(scored), i))
        column.append(scored)

    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)

    kept, places = np.unique(joined(before + itself), return_inverse=True)
    scored_tokens = len(places) // 2
    return Packing(
        token_ids=torch.from_numpy(joined([*prompt_rows, *own]))[None],
        positions=torch.from_numpy(joined(positions))[None],
        blocks=blocks,
        out=torch.from_numpy(out),
        kept=torch.from_numpy(kept),
        before=torch.from_numpy(places[:scored_tokens]),
        itself=torch.from_numpy(places[scored_tokens:]),
        target=torch.from_numpy(joined(target)),
        row=torch.from_numpy(joined(row)),
        column=torch.from_numpy(joined(column)),
        shape=(rows, length or max(len(ids) for ids in token_ids)),
    )


def _prompt_key(prompt: np.ndarray, row: int) -> Hashable:
    """Rows with equal keys share one copy of their prompt."""
    return prompt.tobytes()


def _blocks(
    parent: np.ndarray,
    prompt_start: np.ndarray,
    prompt_lengths: np.ndarray,
    own_start: np.ndarray,
    own_lengths: np.ndarray,
) -> tuple[tuple[Block, ...], np.ndarray]:
    """The rows of attention, in the cheaper of the two ways, and where each packed token's result is."""
    length = prompt_lengths[parent] + own_lengths
    whole = (length**2).sum() / 2  # a causal kernel skips half
    apart = (prompt_lengths**2).sum() / 2 + (own_lengths * length).sum()
    out = np.zeros(prompt_start[-1] + own_lengths.sum(), np.int64)
    blocks: list[Block] = []
    done = 0

    def place(start: np.ndarray, count: np.ndarray, base: int, width: int, skip: np.ndarray) -> None:
        """Row r of a block holds packed tokens start[r] … start[r] + count[r] from column skip[r] on."""
        for r, (first, n) in enumerate(zip(start.tolist(), count.tolist(), strict=True)):
            out[first : first + n] = base + r * width + skip[r] + np.arange(n)

    if whole <= apart:
        for rows in _alike(length):
            width = int(length[rows].max())
            columns = np.arange(width)
            prompts, starts = prompt_lengths[parent[rows]], prompt_start[parent[rows]]
            index = np.where(
                columns < prompts[:, None],
                starts[:, None] + columns,
                own_start[rows][:, None] + columns - prompts[:, None],
            )
            index = torch.from_numpy(np.where(columns < length[rows][:, None], index, 0))
            blocks.append(Block(index, index, None))
            place(starts, prompts, done, width, np.zeros(len(rows), np.int64))  # each rollout's copy is the same
            place(own_start[rows], own_lengths[rows], done, width, prompts)
            done += len(rows) * width
        return tuple(blocks), out

    for rows in _alike(prompt_lengths):
        width = int(prompt_lengths[rows].max())
        columns = np.arange(width)
        index = np.where(columns < prompt_lengths[rows][:, None], prompt_start[rows][:, None] + columns, 0)
        blocks.append(Block(torch.from_numpy(index), torch.from_numpy(index), None))
        place(prompt_start[rows], prompt_lengths[rows], done, width, np.zeros(len(rows), np.int64))
        done += len(rows) * width
    for rows in _alike(own_lengths):
        width, prompts = int(own_lengths[rows].max()), prompt_lengths[parent[rows]]
        if width == 0:
            continue
        columns, before = np.arange(width), np.arange(int(prompts.max()))
        mine = np.where(columns < own_lengths[rows][:, None], own_start[rows][:, None] + columns, 0)
        there = before < prompts[:, None]
        theirs = np.where(there, prompt_start[parent[rows]][:, None] + before, 0)
        allowed = np.concatenate(
            [
                np.broadcast_to(there[:, None, :], (len(rows), width, len(before))),
                np.broadcast_to(np.tril(np.ones((width, width), bool)), (len(rows), width, width)),
            ],
            axis=2,
        )
        key = torch.from_numpy(np.concatenate([theirs, mine], 1))
        blocks.append(Block(torch.from_numpy(mine), key, torch.from_numpy(allowed)[:, None]))
        place(own_start[rows], own_lengths[rows], done, width, np.zeros(len(rows), np.int64))
        done += len(rows) * width
    return tuple(blocks), out


def _alike(lengths: np.ndarray, ratio: float = 0.8) -> list[np.ndarray]:
    """Rows in groups of similar length: the shortest of a group has at least `ratio` of the longest."""
    order = np.argsort(-lengths, kind="stable")
    groups: list[list[int]] = []
    longest = -1.0
    for row in order.tolist():
        if not groups or lengths[row] < ratio * longest:
            groups.append([])
            longest = float(lengths[row])
        groups[-1].append(row)
    return [np.array(g) for g in groups]
