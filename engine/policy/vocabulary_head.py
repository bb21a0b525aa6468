"""Log-probs of tokens from last hidden states: projection, log-softmax and gather in one pass over tiles of tokens.

Logits are never stored. In half precision they are computed relative to the sampled token's logit, z − z_t. The
subtraction happens inside the product, before rounding, so likely tokens, whose logits are close, keep their precision.
If only the hidden states need a gradient, it is computed in the same pass, and the backward pass multiplies it by one
number per token: d log p_t / d h = Σ_v (1[v = t] − p_v) W_v.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE = 1 << 24
"""Logits in a tile of tokens, on a CPU."""
STRIP = 1 << 20
"""Logits that go through exp and the sums at once, so that they stay in the CPU's cache."""
TILE_GPU = 1 << 26
"""Logits in a tile on a GPU. A tile is one strip there: launching a kernel costs more than reading memory again."""
FAR = 80.0
"""Nats above the sampled token beyond which logits are shifted down, so that exp stays finite in float32."""


class TokenLogProbs(torch.autograd.Function):
    """hidden [M, H], weight [V, H], bias [V] or None, target int64 [M] → log-probs [M] and entropies [M], in float32.

    computed: the format of the products. entropy_grad: entropies carry a gradient as well.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        temperature: float,
        computed: torch.dtype,
        entropy_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        h, w = hidden.detach().to(computed), weight.detach().to(computed)
        again = ctx.needs_input_grad[1] or entropy_grad or bool(bias is not None and ctx.needs_input_grad[2])
        at_once = ctx.needs_input_grad[0] and not again
        logprobs, entropy = hidden.new_empty(2, len(h), dtype=torch.float32)
        direction = torch.empty_like(h) if at_once else None
        for part in _tiles(len(h), w):
            tile = _Tile(h[part], w, bias, target[part], temperature)
            logprobs[part], entropy[part] = tile.scores(probabilities=at_once)
            if direction is not None:
                direction[part] = tile.direction()
        ctx.save_for_backward(hidden, weight, bias, target, logprobs, entropy, direction)
        ctx.temperature, ctx.computed, ctx.entropy_grad = temperature, computed, entropy_grad
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_entropy: Tensor | None) -> tuple[object, ...]:  # type: ignore[override]
        hidden, weight, bias, target, logprobs, entropy, direction = ctx.saved_tensors
        rest = (None,) * 4
        if direction is not None:
            return (direction * grad[:, None]).to(hidden.dtype), None, None, *rest
        h, w = hidden.to(ctx.computed), weight.to(ctx.computed)
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        grad_bias = (
            torch.zeros_like(bias, dtype=torch.float32) if bias is not None and ctx.needs_input_grad[2] else None
        )
        for part in _tiles(len(h), w):
            tile = _Tile(h[part], w, bias, target[part], ctx.temperature)
            grad_of_entropy = grad_entropy[part] if ctx.entropy_grad and grad_entropy is not None else None
            logits = tile.gradient(logprobs[part], entropy[part], grad[part], grad_of_entropy)
            if grad_hidden is not None:
                grad_hidden[part] = logits @ w
            if grad_weight is not None:
                grad_weight += logits.t() @ h[part]
            if grad_bias is not None:
                grad_bias += logits.sum(0, dtype=torch.float32)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            grad_bias if bias is None or grad_bias is None else grad_bias.to(bias.dtype),
            *rest,
        )


class _Tile:
    """Logits of n tokens, relative to `around` [n], the rounded logit of each sampled token without its bias."""

    def __init__(self, h: Tensor, w: Tensor, bias: Tensor | None, target: Tensor, temperature: float) -> None:
        self.w, self.target, self.scale = w, target[:, None], 1 / temperature
        exact = torch.linalg.vecdot(h.float(), w[target].float())
        around = exact.to(h.dtype)
        self.z = torch.addmm(-around[:, None].expand(-1, len(w)), h, w.t())  # [n, V]
        self.bias = None if bias is None else bias.detach().float()
        own = exact - around.float()
        if bias is not None:
            own = own + self.bias[target]  # type: ignore[index]
        self.own = own * self.scale
        """The sampled token's exact logit relative to `around`, over the temperature, in float32."""

    def strips(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield columns and their logits over the temperature, float32."""
        width = max(STRIP // len(self.z), 1) if self.z.device.type == "cpu" else self.z.shape[1]
        for start in range(0, self.z.shape[1], width):
            columns = slice(start, start + width)
            logits = self.z[:, columns].float()
            if self.bias is not None:
                logits = logits + self.bias[columns]
            yield columns, logits if self.scale == 1.0 else logits * self.scale

    def scores(self, probabilities: bool) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies, [n]. probabilities: replace the logits by exp(z), with 0 for the token
        itself."""
        largest = self.z.amax(1).float()
        if self.bias is not None:
            largest += self.bias.max()
        shift = (largest * self.scale - FAR).clamp_min(0)  # only if the sampled token is next to impossible
        shifted = bool(shift.any())
        total, weighted = torch.zeros_like(self.own), torch.zeros_like(self.own)
        for columns, logits in self.strips():
            if shifted:
                logits = logits - shift[:, None]
            e = logits.exp()
            inside = (self.target >= columns.start) & (self.target < columns.start + e.shape[1])
            column = (self.target - columns.start).clamp(0, e.shape[1] - 1)
            # The token itself is added at the end, with its exact logit.
            e.scatter_(1, column, torch.where(inside, 0.0, e.gather(1, column)))
            total += e.sum(1)
            weighted += torch.linalg.vecdot(e, logits)
            if probabilities:
                self.z[:, columns] = e
        own = self.own - shift
        self.others = total
        self.total = total + own.exp()
        log_total = self.total.log()
        return own - log_total, log_total - (weighted + own * own.exp()) / self.total

    def direction(self) -> Tensor:
        """Return d log p_t / d h, [n, H]: (1 − p_t) W_t − Σ_{v ≠ t} p_v W_v, without subtracting near-equal numbers."""
        share = (self.scale / self.total)[:, None]
        return self.w[self.target[:, 0]] * (self.others[:, None] * share) - (self.z @ self.w) * share

    def gradient(self, logprobs: Tensor, entropy: Tensor, grad: Tensor, grad_entropy: Tensor | None) -> Tensor:
        """Replace the logits by their gradient, [n, V]."""
        log_total = self.own - logprobs
        for columns, logits in self.strips():
            log_p = logits - log_total[:, None]
            p = log_p.exp()
            by = -p * grad[:, None]
            if grad_entropy is not None:
                by -= p * (log_p + entropy[:, None]) * grad_entropy[:, None]
            inside = (self.target >= columns.start) & (self.target < columns.start + p.shape[1])
            column = (self.target - columns.start).clamp(0, p.shape[1] - 1)
            p_own = logprobs.exp()[:, None]
            own = (1 - p_own) * grad[:, None]
            if grad_entropy is not None:
                own -= p_own * (logprobs + entropy)[:, None] * grad_entropy[:, None]
            by.scatter_(1, column, torch.where(inside, own, by.gather(1, column)))
            self.z[:, columns] = by.mul_(self.scale)
        return self.z


def _tiles(tokens: int, weight: Tensor) -> Iterator[slice]:
    size = max((TILE if weight.device.type == "cpu" else TILE_GPU) // len(weight), 1)
    return (slice(start, start + size) for start in range(0, tokens, size))
