"""Log-probs of many trajectories in one forward pass that computes no token twice and no padding at all.

The rollouts of a group share their prompt, and rows differ in length. So the micro-batch is packed into one row of
N tokens: each different prompt once, then every rollout's own tokens. All layers that work per token run on these N
tokens; only attention looks across tokens, and is told by `Packing` who may see whom:

    short prompts: each rollout as a row of its prompt and its own tokens, causally        [b, L]
    long prompts:  each prompt as a row, causally                                          [g, P]
                   a rollout's own tokens over its prompt and themselves, by a mask        [b, C] over [b, P + C]

Rows of similar length go together, so that little of a block is padding.

The result is the one of the padded forward pass, up to the order of floating-point sums; `agrees_with_plain` checks
that for a given model, and models that do not (other attention, scaled logits) keep the padded path. Tokens after
the last one that is scored or embedded are left out: nothing depends on them. (Sharing prompts in training:
Prefix Grouper, arXiv 2506.05433.)
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel
from trl.kernels import ChunkedLogProbFunction

IMPLEMENTATION = "grpo_tui_packed"

DENSE_LOGITS = 1 << 26
"""Up to so many logits (tokens x vocabulary) at once; above, the projection goes in chunks (and twice)."""
CHUNK = 32768


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
    lies in the results of all blocks, flattened and one after another. source, target: long [M], the packed token
    before each scored token, and the scored token itself; row, column: long [M], where it stands in the padded
    [B, T] (`shape`). own: long [B + 1], where each rollout's own tokens begin.
    """

    token_ids: Tensor
    positions: Tensor
    blocks: tuple[Block, ...]
    out: Tensor
    source: Tensor
    target: Tensor
    row: Tensor
    column: Tensor
    own: Tensor
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


@dataclass(frozen=True)
class PackedOutput:
    """logprobs, entropy: [M], of the scored tokens. hidden: [N, H], last hidden states (None unless asked for)."""

    logprobs: Tensor
    entropy: Tensor
    hidden: Tensor | None = None


def pack(token_ids: Sequence[np.ndarray], agent_mask: Sequence[np.ndarray], length: int | None = None) -> Packing:
    """Lay out B trajectories; `length` is T of the padded result (default: the longest trajectory).

    token_ids[i]: int [T_i]; agent_mask[i]: bool [T_i], True on the tokens that are scored. A first token is never
    scored: nothing comes before it.
    """
    rows = len(token_ids)
    prompts: dict[bytes, int] = {}
    prompt_rows: list[np.ndarray] = []
    parent = np.zeros(rows, np.int64)
    own: list[np.ndarray] = []
    cuts = np.zeros(rows, np.int64)
    for i, (ids, mask) in enumerate(zip(token_ids, agent_mask, strict=True)):
        scored = np.flatnonzero(mask[1:]) + 1
        cut = int(scored[0]) if len(scored) else len(ids)
        end = int(scored[-1]) + 1 if len(scored) else cut
        prompt = np.ascontiguousarray(ids[:cut], dtype=np.int64)
        key = prompt.tobytes()
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
    source, target, row, column = [], [], [], []
    for i, (ids, mask) in enumerate(zip(token_ids, agent_mask, strict=True)):
        scored = np.flatnonzero(mask[1:]) + 1
        if not len(scored):
            continue
        before = scored - 1 - cuts[i] + own_start[i]
        before[0] = prompt_start[parent[i]] + cuts[i] - 1  # the first scored token follows the prompt
        source.append(before)
        target.append(np.asarray(ids)[scored])
        row.append(np.full(len(scored), i))
        column.append(scored)

    def tensor(parts: list[np.ndarray] | np.ndarray) -> Tensor:
        if isinstance(parts, list):
            parts = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return torch.from_numpy(np.ascontiguousarray(parts))

    return Packing(
        token_ids=tensor([*prompt_rows, *own]).long()[None],
        positions=tensor([p.astype(np.int64) for p in positions])[None],
        blocks=blocks,
        out=tensor(out),
        source=tensor(source).long(),
        target=tensor(target).long(),
        row=tensor(row).long(),
        column=tensor(column).long(),
        own=tensor(own_start),
        shape=(rows, length or max(len(ids) for ids in token_ids)),
    )


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


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over one packed row: query [1, h, N, d], key and value [1, k, N, d] → [1, N, h, d].

    Registered with transformers as `grpo_tui_packed`; `packing` comes from the call of the model.
    """
    if packing is None:
        raise ValueError("packed attention was called without a packing")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [N, heads, d]
    groups = q.shape[1] // k.shape[1]

    def rows(x: Tensor, index: Tensor) -> Tensor:
        """[N, heads, d] → [b, heads, L, d]"""
        return x.index_select(0, index.reshape(-1)).view(*index.shape, *x.shape[1:]).transpose(1, 2)

    results = []
    for block in packing.blocks:
        block_k, block_v = rows(k, block.key), rows(v, block.key)
        if groups > 1:
            block_k, block_v = block_k.repeat_interleave(groups, 1), block_v.repeat_interleave(groups, 1)
        attended = F.scaled_dot_product_attention(
            rows(q, block.query),
            block_k,
            block_v,
            attn_mask=block.allowed,
            is_causal=block.allowed is None,
            scale=scaling,
            dropout_p=dropout,
        )
        results.append(attended.transpose(1, 2).flatten(0, 1))  # [b * L, heads, d]
    return torch.cat(results).index_select(0, packing.out)[None], None


def add_packed_forward(model: PreTrainedModel, temperature: float = 1.0) -> None:
    """Give a causal language model a second way of being called: `model(packing=…)` returns a `PackedOutput`.

    It goes through the module's own `forward`, so that DDP, FSDP and PEFT see an ordinary call. `temperature` divides
    the logits.
    """
    AttentionInterface.register(IMPLEMENTATION, packed_attention)
    plain = model.forward

    @functools.wraps(type(model).forward)
    def forward(
        self: Any,
        *args: Any,
        packing: Packing | None = None,
        entropy_grad: bool = False,
        keep_hidden: bool = False,
        score: bool = True,
        **kwargs: Any,
    ) -> Any:
        if packing is None:
            return plain(*args, **kwargs)
        states = self.base_model(
            input_ids=packing.token_ids, position_ids=packing.positions, use_cache=False, packing=packing
        ).last_hidden_state[0]
        head = self.get_output_embeddings()
        chosen = states.index_select(0, packing.source)
        logprobs, entropy = score_tokens(chosen, head.weight, head.bias, packing.target, temperature, entropy_grad)
        return PackedOutput(logprobs, entropy, states if keep_hidden else None)

    model.forward = types.MethodType(forward, model)


def score_tokens(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target token and the entropy of its distribution: hidden [M, H], weight [V, H] → [M], [M].

    The entropy carries a gradient only when asked to: it is a number to look at unless there is an entropy bonus.
    """
    if hidden.shape[0] * weight.shape[0] > DENSE_LOGITS:
        logprobs, entropy, *_ = ChunkedLogProbFunction.apply(  # type: ignore[misc]
            hidden, weight, bias, target, temperature, CHUNK, None, 1.0, ("log_probs", "entropy")
        )
        return logprobs, entropy if entropy_grad else entropy.detach()
    logits = F.linear(hidden, weight, bias).float()
    if temperature != 1.0:
        logits = logits / temperature
    log_p = torch.log_softmax(logits, -1)
    logprobs = log_p.gather(-1, target[:, None])[:, 0]
    with contextlib.nullcontext() if entropy_grad else torch.no_grad():
        kept = log_p if entropy_grad else log_p.detach()
        entropy = -(kept.exp() * kept).sum(-1)
    return logprobs, entropy


@contextlib.contextmanager
def packed_mode(model: PreTrainedModel) -> Iterator[None]:
    """Attention of `model` is the packed one inside. With gradient checkpointing the backward pass belongs inside
    too: it runs the layers again."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = IMPLEMENTATION
    try:
        yield
    finally:
        config._attn_implementation = before


def turn_embeddings(hidden: Tensor, packing: Packing, agent_mask: Sequence[np.ndarray], turn: Sequence[np.ndarray],
                    prompt_lengths: Sequence[int]) -> list[np.ndarray]:  # fmt: skip
    """Mean of the last hidden states over each turn's agent tokens: hidden [N, H] → B arrays float32 [S_i, H]."""
    spans = packing.own.tolist()
    index, owner, counts = [], [], []
    total = 0
    for i, (mask, turns) in enumerate(zip(agent_mask, turn, strict=True)):
        where = np.flatnonzero(mask[1:]) + 1
        steps = int(turns[where].max()) + 1 if len(where) else 0
        index.append(where - prompt_lengths[i] + spans[i])
        owner.append(turns[where].astype(np.int64) + total)
        counts.append(steps)
        total += steps
    if total == 0:
        return [np.zeros((0, hidden.shape[-1]), np.float32) for _ in counts]
    rows = torch.from_numpy(np.concatenate(index)).to(hidden.device)
    owners = torch.from_numpy(np.concatenate(owner)).to(hidden.device)
    sums = torch.zeros(total, hidden.shape[-1], device=hidden.device).index_add_(
        0, owners, hidden.index_select(0, rows).float()
    )
    number = torch.zeros(total, device=hidden.device).index_add_(0, owners, torch.ones_like(owners, dtype=sums.dtype))
    means = (sums / number.clamp(min=1)[:, None]).cpu().numpy()
    return [np.ascontiguousarray(part) for part in np.split(means, np.cumsum(counts)[:-1])]


@torch.no_grad()
def agrees_with_plain(model: PreTrainedModel, tokens: int = 24) -> bool:
    """Whether the packed forward of `model` gives the log-probs of the padded one, on four short rows.

    A model with attention that is not asked for by name, with recurrent layers or with logits that are scaled or
    capped does not; it must keep the padded path.
    """
    vocabulary = model.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr]
    device = next(model.parameters()).device
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, vocabulary, tokens // 3) for _ in range(2)]
    rows = [np.concatenate([prompts[i // 2], rng.integers(0, vocabulary, tokens // 3 + 3 * i)]) for i in range(4)]
    masks = [np.arange(len(r)) >= tokens // 3 for r in rows]
    packing = pack(rows, masks).to(device)
    training = model.training
    model.eval()
    try:
        with packed_mode(model):
            ours = packing.pad(model(packing=packing).logprobs)
        ids = torch.zeros(packing.shape, dtype=torch.long)
        there = torch.zeros(packing.shape, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)], there[i, : len(row)] = torch.from_numpy(row), 1
        ids, there = ids.to(device), there.to(device)
        plain = model(input_ids=ids, attention_mask=there, labels=ids.masked_fill(there == 0, -100), fused_lm_head=True)
        difference = (ours[:, 1:] - plain.log_probs)[ours[:, 1:] != 0]
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError):
        return False
    finally:
        model.train(training)
    tolerance = 1e-4 if ours.dtype == torch.float32 and next(model.parameters()).dtype == torch.float32 else 0.1
    return bool(difference.abs().max() < tolerance)
