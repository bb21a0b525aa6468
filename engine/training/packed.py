"""Log-probs of many trajectories in one forward pass that computes no token twice and no padding at all.

The rollouts of a group share their prompt, and rows differ in length. So the micro-batch is packed into one row of
N tokens: each different prompt once, then every rollout's own tokens. All layers that work per token run on these N
tokens; only attention looks across tokens, and is told by `Packing` who may see whom:

    prompt tokens      see their own prompt, causally                       [G, P]
    a rollout's tokens see its prompt and its own earlier tokens, causally  [B, C] over [B, P + C]

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
class Packing:
    """How B trajectories lie in one packed row of N tokens. Indices point into the row; all tensors are long or bool.

    token_ids, positions: [1, N]. prompt_index: [G, P], prompt_mask: [G, P]. rollout_index: [B, C], rollout_mask:
    [B, C]. parent: [B], the prompt of each rollout. prompt_out, rollout_out: where the packed prompt and rollout tokens
    lie in the flattened [G * P] and [B * C]. allowed: [B, 1, C, P + C], who a rollout's tokens may see.
    source, target: [M], the packed token before each scored token, and the scored token itself; row, column: [M], where
    it stands in the padded [B, T].
    """

    token_ids: Tensor
    positions: Tensor
    prompt_index: Tensor
    rollout_index: Tensor
    parent: Tensor
    prompt_out: Tensor
    rollout_out: Tensor
    allowed: Tensor
    source: Tensor
    target: Tensor
    row: Tensor
    column: Tensor
    own: Tensor
    shape: tuple[int, int]

    def to(self, device: torch.device | str) -> Packing:
        """The same on `device`."""
        moved: dict[str, Any] = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in vars(self).items()}
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
    width_p, width_c = int(prompt_lengths.max(initial=1)), max(int(own_lengths.max(initial=0)), 1)

    prompt_there = np.arange(width_p) < prompt_lengths[:, None]
    own_there = np.arange(width_c) < own_lengths[:, None]
    prompt_index = np.where(prompt_there, prompt_start[:-1, None] + np.arange(width_p), 0)
    rollout_index = np.where(own_there, own_start[:-1, None] + np.arange(width_c), 0)
    causal = np.tril(np.ones((width_c, width_c), bool))
    allowed = np.concatenate(
        [np.broadcast_to(prompt_there[parent][:, None, :], (rows, width_c, width_p)),
         np.broadcast_to(causal, (rows, width_c, width_c))], axis=2,
    )  # fmt: skip

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
        prompt_index=tensor(prompt_index),
        rollout_index=tensor(rollout_index),
        parent=tensor(parent),
        prompt_out=tensor(np.flatnonzero(prompt_there)),
        rollout_out=tensor(np.flatnonzero(own_there)),
        allowed=tensor(allowed)[:, None],
        source=tensor(source).long(),
        target=tensor(target).long(),
        row=tensor(row).long(),
        column=tensor(column).long(),
        own=tensor(own_start),
        shape=(rows, length or max(len(ids) for ids in token_ids)),
    )


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

    def spread(x: Tensor, index: Tensor) -> Tensor:
        return x.index_select(0, index.reshape(-1)).view(*index.shape, *x.shape[1:]).transpose(1, 2)

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if groups > 1:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling, dropout_p=dropout
        )
        return out.transpose(1, 2).flatten(0, 1)  # [rows * width, h, d]

    prompt_k, prompt_v = spread(k, packing.prompt_index), spread(v, packing.prompt_index)
    of_prompts = attend(spread(q, packing.prompt_index), prompt_k, prompt_v, None)
    all_k = torch.cat([prompt_k.index_select(0, packing.parent), spread(k, packing.rollout_index)], 2)
    all_v = torch.cat([prompt_v.index_select(0, packing.parent), spread(v, packing.rollout_index)], 2)
    of_rollouts = attend(spread(q, packing.rollout_index), all_k, all_v, packing.allowed)
    out = torch.cat([of_prompts.index_select(0, packing.prompt_out), of_rollouts.index_select(0, packing.rollout_out)])
    return out[None], None


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
