"""Log-probs of many trajectories in one forward pass over the packed row of `packing`.

The result is the one of the padded forward pass, up to the order of floating-point sums; `agrees_with_plain` checks
that for a given model, and models that do not (other attention, scaled logits) keep the padded path.
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

from .activations import decoder_layers
from .packing import Packing, pack

IMPLEMENTATION = "grpo_tui_packed"

DENSE_LOGITS = 1 << 26
"""Up to so many logits (tokens x vocabulary) at once; above, the projection goes in chunks (and twice)."""
CHUNK = 32768


@dataclass(frozen=True)
class PackedOutput:
    """logprobs, entropy: [M], of the scored tokens. hidden: [K, H], last hidden states of `packing.kept`."""

    logprobs: Tensor
    entropy: Tensor
    hidden: Tensor


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
    native = groups > 1 and q.device.type == "cpu"  # on other devices not every kernel knows of shared keys

    def rows(x: Tensor, index: Tensor) -> Tensor:
        """[N, heads, d] → [b, heads, L, d]"""
        return x.index_select(0, index.reshape(-1)).view(*index.shape, *x.shape[1:]).transpose(1, 2)

    results = []
    for block in packing.blocks:
        block_k, block_v = rows(k, block.key), rows(v, block.key)
        if groups > 1 and not native:
            block_k, block_v = block_k.repeat_interleave(groups, 1), block_v.repeat_interleave(groups, 1)
        attended = F.scaled_dot_product_attention(
            rows(q, block.query),
            block_k,
            block_v,
            attn_mask=block.allowed,
            is_causal=block.allowed is None,
            scale=scaling,
            dropout_p=dropout,
            enable_gqa=native,
        )
        results.append(attended.transpose(1, 2).flatten(0, 1))  # [b * L, heads, d]
    return torch.cat(results).index_select(0, packing.out)[None], None


def add_packed_forward(model: PreTrainedModel, temperature: float = 1.0, tail: bool = True) -> None:
    """Give a causal language model a second way of being called: `model(packing=…)` returns a `PackedOutput`.

    It goes through the module's own `forward`, so that DDP, FSDP and PEFT see an ordinary call. `temperature` divides
    the logits. `tail`: the last layer's MLP may run on the tokens alone that are read (not where layers are sharded).
    """
    AttentionInterface.register(IMPLEMENTATION, packed_attention)
    plain = model.forward

    @functools.wraps(type(model).forward)
    def forward(
        self: Any,
        *args: Any,
        packing: Packing | None = None,
        entropy_grad: bool = False,
        **kwargs: Any,
    ) -> Any:
        if packing is None:
            return plain(*args, **kwargs)
        states = packed_states(self, packing)
        head = self.get_output_embeddings()
        chosen = states.index_select(0, packing.before)
        logprobs, entropy = score_tokens(chosen, head.weight, head.bias, packing.target, temperature, entropy_grad)
        return PackedOutput(logprobs, entropy, states)

    model.forward = types.MethodType(forward, model)
    model.packed_temperature = temperature  # type: ignore[assignment]
    layers = decoder_layers(model)
    model.packed_tail = tail and bool(layers) and all(hasattr(layers[-1], n) for n in TAIL)  # type: ignore[assignment]


def packed_states(model: Any, packing: Packing) -> Tensor:
    """The last hidden states of `packing.kept`, [K, H]: the packed forward without its output layer."""
    states = model.base_model(
        input_ids=packing.token_ids, position_ids=packing.positions, use_cache=False, packing=packing
    ).last_hidden_state[0]
    return states if model.packed_tail else states.index_select(0, packing.kept)


TAIL = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


def _tail(layer: Any, hidden_states: Tensor, *, packing: Packing, **kwargs: Any) -> Tensor:
    """The last layer of a pre-norm decoder: what follows attention runs only on the tokens that are read, [1, K, H]."""
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), packing=packing, **kwargs)
    hidden_states = (hidden_states + attended).index_select(1, packing.kept)
    return hidden_states + layer.mlp(layer.post_attention_layernorm(hidden_states))


def score_tokens(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target token and the entropy of its distribution: hidden [M, H], weight [V, H] → [M], [M].

    The entropy carries a gradient only when asked to: it is a number to look at unless there is an entropy bonus.
    """
    if hidden.shape[0] * weight.shape[0] > DENSE_LOGITS:
        from trl.kernels import ChunkedLogProbFunction  # here: TRL takes seconds to import, and serving does without

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
    last: Any = decoder_layers(model)[-1] if model.packed_tail else None
    if last is not None:
        last.forward = types.MethodType(_tail, last)
    try:
        yield
    finally:
        config._attn_implementation = before
        if last is not None:
            del last.forward


def turn_embeddings(hidden: Tensor, packing: Packing, turn: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Mean of the last hidden states over each turn's scored tokens: hidden [K, H] → B arrays float32 [S_i, H].

    turn[i]: int [T_i], the turn of each token.
    """
    row, column = packing.row.cpu().numpy(), packing.column.cpu().numpy()
    turns = np.array([turn[r][c] for r, c in zip(row, column, strict=True)], np.int64)
    counts = np.zeros(packing.shape[0], np.int64)
    np.maximum.at(counts, row, turns + 1)
    starts = np.cumsum(counts) - counts
    owner = torch.from_numpy(starts[row] + turns).to(hidden.device)
    sums = torch.zeros(int(counts.sum()), hidden.shape[-1], device=hidden.device)
    sums.index_add_(0, owner, hidden.index_select(0, packing.itself).float())
    number = torch.bincount(owner, minlength=len(sums)).clamp(min=1)
    means = (sums / number[:, None]).cpu().numpy()
    return [np.ascontiguousarray(part) for part in np.split(means, starts[1:])]


def agrees_with_plain(model: PreTrainedModel, tokens: int = 24) -> bool:
    """Whether the packed forward of `model` gives the log-probs of the padded one, on four short rows.

    A model with attention that is not asked for by name, with recurrent layers or with logits that are scaled or
    capped does not; it must keep the padded path. One whose last layer is of another kind does without `_tail`.
    """
    if model.packed_tail and _agrees(model, tokens):
        return True
    model.packed_tail = False  # type: ignore[assignment]
    return _agrees(model, tokens)


@torch.no_grad()
def _agrees(model: PreTrainedModel, tokens: int) -> bool:
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
        logits = model(input_ids=ids, attention_mask=there).logits[:, :-1].float() / model.packed_temperature
        plain = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
        difference = (ours[:, 1:] - plain)[ours[:, 1:] != 0]
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError):
        return False
    finally:
        model.train(training)
    tolerance = 1e-4 if ours.dtype == torch.float32 and next(model.parameters()).dtype == torch.float32 else 0.1
    return bool(difference.abs().max() < tolerance)
