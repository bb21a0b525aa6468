"""Whether the log-probs of the loss are those of the policy that acted, while the policy is still unchanged.

Before the first optimiser step the two are one policy, so their KL divergence is 0 but for rounding. If it is not, the
forward pass of the loss computes another model than the one that acts, and every importance ratio of the run is wrong.
"""

from __future__ import annotations

from torch import nn

from ...configs.errors import GrpoTuiError
from ..policy.unwrap import base_of

LIMIT = 1e-3
"""Nats per token. Rounding gives less than 1e-9 in float32 and 3e-4 in bfloat16 (135 million parameters)."""


class ChangedPolicyError(GrpoTuiError, RuntimeError):
    """The log-probs of the loss are not those of the policy that acted."""


def drops_out(model: nn.Module) -> bool:
    """Whether dropout makes the training pass another one than the pass that acts."""
    config = base_of(model).config.get_text_config(decoder=True)
    return any(m.p for m in model.modules() if isinstance(m, nn.Dropout)) or bool(
        getattr(config, "attention_dropout", 0.0)
    )


def check(kl: float, half: bool) -> None:
    """Raise ChangedPolicyError for a KL (nats per token) above the limit. half: the pass is in half precision."""
    if not kl <= LIMIT:
        remedy = "Rounding in half precision adds to it: try model.compute: float32. " if half else ""
        raise ChangedPolicyError(
            f"the log-probs of the loss are not those of the policy that acted: before the first update their KL is "
            f"{kl:.2g} nats a token, and {LIMIT:g} is allowed. {remedy}An environment that gives log-probs must give "
            "those of this policy. Otherwise the model computes something else in training than in rollouts: report "
            "it with its config.json"
        )
