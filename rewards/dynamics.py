"""The dynamics model of curiosity: a light MLP with a frozen base and LoRA adapters.

The adapters are peft's: its initialisation, scaling and parameter names are known in the field. The base is random and
frozen: a fixed non-linear expansion of (state, action) whose output starts near zero, so that the untrained model
predicts no change. Only the low-rank update is learned, which suits the low-rank changes that actions make to a state
embedding.
"""

from __future__ import annotations

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

TRAINABLE_SHARE = 0.1
"""Largest share of the parameters that may train."""


class DynamicsModel(nn.Module):
    """Predicts the change of the state embedding: `(s_t [N, D], a_t [N, A]) -> s_{t+1} - s_t [N, D]`.

    `lora_rank` is lowered where needed, so that at most a tenth of all parameters train. `version` grows with each
    change of the weights (`changed`). Cached predictions are keyed by it.
    """

    def __init__(
        self, embedding_dim: int, action_dim: int = 64, hidden: int = 128, lora_rank: int = 8, seed: int = 0
    ) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        self.action_dim = action_dim
        self.version = 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.expand = nn.Linear(embedding_dim + action_dim, hidden)
            self.project = nn.Linear(hidden, embedding_dim)
            with torch.no_grad():
                self.project.weight.mul_(0.1)
                self.project.bias.zero_()
            self.lora_rank = min(lora_rank, _largest_rank(embedding_dim + action_dim, hidden, embedding_dim))
            adapters = LoraConfig(
                r=self.lora_rank, lora_alpha=2 * self.lora_rank, target_modules=["expand", "project"], bias="none"
            )
            inject_adapter_in_model(adapters, self)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora_" in name)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Predict the change, [N, D]."""
        hidden = nn.functional.gelu(self.expand(torch.cat((state, action), dim=-1)))
        return self.project(hidden)

    def adapters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that train, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def changed(self) -> None:
        self.version += 1


def _largest_rank(inputs: int, hidden: int, outputs: int) -> int:
    """Return the largest LoRA rank that keeps the trainable share within `TRAINABLE_SHARE`, at least 1."""
    base = inputs * hidden + hidden + hidden * outputs + outputs
    per_rank = inputs + 2 * hidden + outputs
    return max(1, int(TRAINABLE_SHARE / (1 - TRAINABLE_SHARE) * base / per_rank))
