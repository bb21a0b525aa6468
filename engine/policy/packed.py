"""Log-probs of many trajectories in one forward pass over the packed row of `packing`.

The result equals that of the padded forward pass, up to the order of floating-point sums. Sliding windows are
respected. `PackedForward.agrees` compares the two for a given model, beyond each of its windows. Models that differ
(other attention, scaled logits) keep the padded path.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.attention import SDPBackend
from transformers import AttentionInterface, PreTrainedModel

from .activations import decoder_layers
from .packing import Packing, pack
from .padded import padded_forward
from .patches import patched, short_windows
from .precision import computed_in
from .token_scores import score_tokens
from .vision.inputs import VisionModel

IMPLEMENTATION = "grpo_tui_packed"
WITHOUT_EFFECT = {"position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states"}
"""Arguments of attention that change nothing here: a packing holds its tokens' positions."""

COMPARED = 8
"""Tokens of the prompts on which a packed and a padded pass are compared, and the fewest of what follows them."""


@dataclasses.dataclass(frozen=True)
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
    sliding_window: int | None = None,
    packing: Packing | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attend within one packed row: query [1, h, N, d], key and value [1, k, N, d] → [1, N, h, d].

    Registered with transformers as `grpo_tui_packed`. The call of the model passes `packing`. Raises ValueError if a
    layer asks for anything that is not computed here (a soft cap, sinks, a bias).
    """
    if packing is None:
        raise ValueError("packed attention was called without a packing")
    if other := [name for name, setting in kwargs.items() if setting is not None and name not in WITHOUT_EFFECT]:
        raise ValueError(f"packed attention has no {', '.join(other)}")
    layout = packing.layout.within(sliding_window)
    # A half-precision policy rotates in float32. The products use the format of the values.
    q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))  # [N, heads, d]
    groups = q.shape[1] // k.shape[1]
    native = groups > 1 and q.device.type == "cpu"  # on other devices not every kernel supports shared keys

    def rows(x: Tensor, index: Tensor) -> Tensor:
        """[N, heads, d] → [b, heads, L, d]"""
        return x.index_select(0, index.reshape(-1)).view(*index.shape, *x.shape[1:]).transpose(1, 2)

    results = []
    for block in layout.blocks:
        block_k, block_v = rows(k, block.key), rows(v, block.key)
        if groups > 1 and not native:
            block_k, block_v = block_k.repeat_interleave(groups, 1), block_v.repeat_interleave(groups, 1)
        block_q = rows(q, block.query)
        if not dropout and backward_in_float32(block_q, block_k, block_v, block.allowed):
            attended: Any = HalfAttention.apply(block_q, block_k, block_v, block.allowed, scaling)
        else:
            attended = F.scaled_dot_product_attention(
                block_q,
                block_k,
                block_v,
                attn_mask=block.allowed,
                is_causal=block.allowed is None,
                scale=scaling,
                dropout_p=dropout,
                enable_gqa=native,
            )
        results.append(attended.transpose(1, 2).flatten(0, 1))  # [b * L, heads, d]
    return torch.cat(results).index_select(0, layout.out)[None], None


def backward_in_float32(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> bool:
    """Return whether `HalfAttention` applies: on a CPU, with a gradient, where torch would use these kernels itself.

    Not every torch supports shared keys, and none supports keys and values of different sizes.
    """
    half = query.dtype in (torch.bfloat16, torch.float16) and query.device.type == "cpu"
    if not half or not torch.is_grad_enabled() or not query.requires_grad:
        return False
    shared = query.shape[1] != key.shape[1]
    chosen = torch.ops.aten._fused_sdp_choice(query, key, value, allowed, 0.0, allowed is None, enable_gqa=shared)
    return chosen == SDPBackend.FLASH_ATTENTION.value


class HalfAttention(torch.autograd.Function):
    """query [b, h, L, d], key and value [b, k, S, d], allowed bool [b, 1, L, S] (None: causal) → [b, h, L, d].

    The forward pass is torch's. Its backward kernel for bfloat16 rounds its intermediate sums, and is slow for short
    rows.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scale: float | None
    ) -> Tensor:
        """Keep the inputs, the output, and the logarithm of each query's sum of weights."""
        attend, mask = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, _added(allowed, query.dtype)
        out, log_sum = attend(query, key, value, 0.0, allowed is None, attn_mask=mask, scale=scale)
        ctx.save_for_backward(query, key, value, out, log_sum, allowed)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Convert everything to float32. `log_sum` is in float32 in either format."""
        query, key, value, out, log_sum, allowed = ctx.saved_tensors
        inputs = (x.float() for x in (grad, query, key, value, out))
        mask = _added(allowed, torch.float32)
        attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grads = attend_backward(*inputs, log_sum, 0.0, allowed is None, attn_mask=mask, scale=ctx.scale)
        return *(g.to(query.dtype) for g in grads), None, None


def _added(allowed: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return 0 where attention is allowed and −∞ elsewhere."""
    if allowed is None:
        return None
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, -torch.inf)


class PackedForward:
    """A second way to call a causal language model: `model(packing=…)` returns a `PackedOutput`.

    It goes through the module's own `forward`, so that DDP and PEFT see an ordinary call. temperature: divides the
    logits. `short_tail`: run the last layer's attention and MLP only on the tokens that are read.
    """

    def __init__(self, model: PreTrainedModel, temperature: float = 1.0) -> None:
        self.model = model
        self.temperature = temperature
        self.seeing = VisionModel.of(model)
        self.layers = decoder_layers(model)
        self.short_tail = bool(self.layers) and all(hasattr(self.layers[-1], part) for part in TAIL)
        if self.seeing is not None and self.seeing.deep_layers >= model.config.get_text_config().num_hidden_layers:
            self.short_tail = False  # features are added to all tokens after the last layer

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        plain = self.model.forward

        @functools.wraps(type(self.model).forward)
        def forward(
            *args: object,
            packing: Packing | None = None,
            entropy_grad: bool = False,
            **kwargs: object,
        ) -> Any:
            return plain(*args, **kwargs) if packing is None else self(packing, entropy_grad)

        with patched(self.model, "forward", forward):
            yield

    def __call__(self, packing: Packing, entropy_grad: bool = False) -> PackedOutput:
        """Return log-probs and entropies of the M scored tokens, and their hidden states. Call inside `attention`."""
        states = self.states(packing)
        head: Any = self.model.get_output_embeddings()
        chosen = states.index_select(0, packing.before)
        scores = score_tokens(
            chosen, head.weight, head.bias, packing.target, self.temperature, entropy_grad, computed_in(self.model)
        )
        return PackedOutput(*scores, states)

    def states(self, packing: Packing) -> Tensor:
        """Return the last hidden states of `packing.kept`, [K, H], without the output layer."""
        body: Any = self.model.base_model
        seen: dict[str, object] = {}
        if packing.images and self.seeing is not None:
            seen["mm_encoder_outputs"] = self.seeing.tower.features(packing.images)
        output = body(
            input_ids=packing.token_ids, position_ids=packing.positions, use_cache=False, packing=packing, **seen
        )
        states = output.last_hidden_state[0]
        return states if self.short_tail else states.index_select(0, packing.kept)

    @contextlib.contextmanager
    def attention(self) -> Iterator[None]:
        """Use packed attention and the short last layer in the block. With gradient checkpointing, run the backward
        pass inside as well, since it runs the layers again."""
        AttentionInterface.register(IMPLEMENTATION, packed_attention)
        with contextlib.ExitStack() as stack:
            text = self.model.config.get_text_config(decoder=True)  # not the vision tower's
            stack.enter_context(patched(text, "_attn_implementation", IMPLEMENTATION))
            if self.short_tail:
                last = self.layers[-1]
                stack.enter_context(patched(last, "forward", types.MethodType(_tail, last)))
            yield

    def agrees(self) -> bool:
        """Return whether four short rows get the log-probs of the padded forward pass. Call it while installed.

        A model that does not select attention by name, has recurrent layers, or scales or caps its logits fails, and
        must keep the padded path. If the last layer is of another kind, `short_tail` is switched off. Packed blocks do
        not support bidirectional attention over an image. During the comparison the model's windows are shorter than
        the rows. If that changes nothing, the behaviour beyond the windows is unknown.
        """
        if self.seeing is not None and self.seeing.two_way:
            return False
        if self.short_tail and _agrees(self):
            return True
        self.short_tail = False
        return _agrees(self)


TAIL = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


def _tail(layer: Any, hidden_states: Tensor, *, packing: Packing, **kwargs: Any) -> Tensor:
    """Run the last layer of a pre-norm decoder. After attention, only the used tokens are computed, [1, K, H]."""
    if hidden_states.device.type == "cpu":  # elsewhere a causal kernel is faster than a mask that is smaller
        packing = dataclasses.replace(packing, layout=packing.last)
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), packing=packing, **kwargs)
    hidden_states = (hidden_states + attended).index_select(1, packing.kept)
    return hidden_states + layer.mlp(layer.post_attention_layernorm(hidden_states))


@torch.no_grad()
def _agrees(packed: PackedForward) -> bool:
    model: Any = packed.model
    vocabulary = model.get_input_embeddings().weight.shape[0]
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, vocabulary, COMPARED) for _ in range(2)]
    rows = [np.concatenate([prompts[i // 2], rng.integers(0, vocabulary, COMPARED + 3 * i)]) for i in range(4)]
    masks = [np.arange(len(r)) >= COMPARED for r in rows]
    packing = pack(rows, masks).to(next(model.parameters()).device)

    def padded() -> Tensor:
        """Return the log-probs of the padded forward pass, in packed order."""
        logits = padded_forward(model, rows, masks).logits.float() / packed.temperature
        return torch.log_softmax(logits, -1).gather(-1, packing.target[:, None])[:, 0]

    training = model.training
    model.eval()
    try:
        with short_windows(model, COMPARED) as shorter:
            with packed.attention():
                ours = model(packing=packing).logprobs
            plain = padded()
        effect = (plain - padded()).abs().max().item() if shorter else math.inf
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError):
        return False
    finally:
        model.train(training)
    tolerance = 1e-4 if computed_in(model) == torch.float32 else 0.1
    return (ours - plain).abs().max().item() < min(tolerance, effect / 4)
