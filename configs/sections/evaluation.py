"""One evaluation of a policy on held-out tasks."""

from __future__ import annotations

from pydantic import Field

from .base import Section


class EvaluationConfig(Section):
    """The policy under evaluation and how it samples. `grpo-tui eval` writes this section."""

    subject: str = ""
    """The policy as it was named: a run, `RUN@STEP`, adapters, or a model."""
    step: int = Field(default=0, ge=0)
    """Optimiser steps behind the policy."""
    samples: int = Field(default=1, ge=1)
    """Rollouts of each task."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Sampling temperature; 0 is greedy."""
