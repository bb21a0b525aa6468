"""The log-probs of a policy on a fixed text, by which another process is recognised as serving the same policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from .prepared import acting
from .unwrap import base_of, device_of


@dataclass(frozen=True, eq=False)
class Probe:
    """token_ids: the text, N tokens. logprobs: float32 [N - 1], nats, of each token but the first, at temperature 1.
    next_logprobs: float32 [V], nats, of every token that could come next, at `temperature`, which is not 1."""

    token_ids: tuple[int, ...]
    logprobs: np.ndarray
    next_logprobs: np.ndarray
    temperature: float


def probe(model: nn.Module, token_ids: Sequence[int], temperature: float = 1.5) -> Probe:
    """Run one forward pass over the text, in eval mode."""
    base = base_of(model)
    tokens = torch.tensor([list(token_ids)], device=device_of(model))
    with acting(model):
        logits = base(input_ids=tokens, use_cache=False).logits[0].float()
    logprobs = logits[:-1].log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
    following = (logits[-1] / temperature).log_softmax(-1)
    return Probe(tuple(token_ids), logprobs.cpu().numpy(), following.cpu().numpy(), temperature)
