"""The settings of an agent, and the conversion of logits to tokens and their exact log-probs.

The log-prob of a token is that of `softmax(logits / temperature)` over the whole vocabulary, in float32. TRL's
`GRPOTrainer` computes the same in its loss, so on-policy ratios are exactly one. Truncation (top-k, top-p, min-p) and
the repetition penalty change which tokens are drawn, not the recorded log-prob: the trained policy is the one without
them. Greedy decoding records the log-prob at temperature 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SamplingSettings:
    """Settings for drawing a token. `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 keep the whole
    vocabulary. `repetition_penalty` lowers the logits of earlier tokens (CTRL, arXiv 1909.05858)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature is {self.temperature}, but must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, but must be above 0 and at most 1")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}, but must be 0 (all tokens) or more")


@dataclass(frozen=True)
class AgentSettings(SamplingSettings):
    """How tokens are drawn, and when a turn or a trajectory ends.

    A turn ends with the model's end-of-turn token, or after `max_turn_tokens` tokens. A trajectory (prompt, turns and
    observations) has at most `max_trajectory_tokens` tokens, and all its turns together at most `max_new_tokens`.
    """

    max_turn_tokens: int = 256
    max_trajectory_tokens: int = 4096
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = (self.max_turn_tokens, self.max_trajectory_tokens, self.max_new_tokens)
        if any(limit is not None and limit < 1 for limit in limits):
            raise ValueError("max_turn_tokens, max_trajectory_tokens and max_new_tokens must be at least 1")


@dataclass(frozen=True)
class TokenLogprobs:
    """The log-probs of a written token and of the likeliest tokens at its position, in nats at temperature 1."""

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, logits: torch.Tensor, token: int, count: int) -> TokenLogprobs:
        """Score a token by the logits `[V]` at its position, with the `count` likeliest tokens there."""
        logprobs = logits.float().log_softmax(-1)
        best = logprobs.topk(min(count, len(logprobs)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return cls(token, float(logprobs[token]), tuple(pairs))


def float64_device(device: torch.device) -> torch.device:
    """Return the device on which to draw. Apple's GPUs have no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def sample(
    logits: torch.Tensor,
    settings: SamplingSettings,
    uniform: torch.Tensor | None,
    never: torch.Tensor | None = None,
    seen: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row by inverting the cumulative distribution.

    logits: `[n, V]`, any float dtype. uniform: float64 `[n]` in [0, 1) on `float64_device`; None if greedy. never:
    int64 `[k]`, tokens that are not drawn, without an effect on the log-probs. seen: bool `[n, V]`, tokens of prompt
    and turns, for the repetition penalty. Returns tokens int64 `[n]` and log-probs float32 `[n]`.
    """
    logits = logits.float()
    greedy = settings.temperature == 0
    temperature = 1.0 if greedy else settings.temperature
    logprobs = (logits if temperature == 1 else logits / temperature).log_softmax(-1)
    drawn = logprobs
    if seen is not None:
        penalty = settings.repetition_penalty
        lowered = torch.where(logits < 0, logits * penalty, logits / penalty)
        drawn = (torch.where(seen, lowered, logits) / temperature).log_softmax(-1)
    drawn = drawn if never is None else drawn.index_fill(-1, never, -torch.inf)
    if greedy:
        tokens = drawn.argmax(-1)
    else:
        assert uniform is not None
        kept = _truncated(drawn.to(uniform.device), settings)
        # float64: float32 sums over a large vocabulary lose the tail.
        cumulative = kept.exp().cumsum(-1, dtype=torch.float64)
        target = uniform[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp_max(logits.shape[-1] - 1)
        tokens = tokens.to(logits.device)
    return tokens, logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _truncated(logprobs: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """Set log-probs outside top-k, then outside top-p of the rest, and below min-p of the largest, to -inf."""
    vocabulary = logprobs.shape[-1]
    if 0 < settings.top_k < vocabulary:
        threshold = logprobs.topk(settings.top_k, -1).values[:, -1:]
        logprobs = logprobs.masked_fill(logprobs < threshold, -torch.inf)
    if settings.top_p < 1:
        ordered, order = logprobs.sort(-1, descending=True)
        probs = ordered.softmax(-1)
        # A token stays while the mass before it is below top_p, so the most likely one always stays.
        outside = probs.cumsum(-1) - probs >= settings.top_p
        logprobs = logprobs.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
    if settings.min_p > 0:
        threshold = logprobs.amax(-1, keepdim=True) + math.log(settings.min_p)
        logprobs = logprobs.masked_fill(logprobs < threshold, -torch.inf)
    return logprobs
