"""Targets for metrics in addition to the record."""

from __future__ import annotations

from typing import Literal

from .base import Section


class LoggingConfig(Section):
    """wandb is off by default, and `offline` needs no key."""

    wandb: Literal["off", "offline", "online"] = "off"
    wandb_project: str = "grpo-tui"
    record_tokens: bool = True
    """Keep token ids, masks, log-probs and advantages of every trajectory."""
