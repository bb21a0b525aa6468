"""What the agent acts in, and which tasks it gets."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .base import Section


class EnvironmentConfig(Section):
    """The environment and its data.

    Without `train_data` the environment makes its own tasks (`Env.make_tasks`). With it, each row of the JSONL file
    or saved `datasets` folder names `env_class_path`, `env_config` and `task_data` itself; the two keys
    `class_path` and `config` here are then the defaults for rows that leave them out.
    """

    class_path: str = "grpo_tui.envs.visual.VisualEnv"
    """`package.module.Class`, or `path/to/file.py:Class`."""
    config: dict[str, Any] = Field(default_factory=dict)
    train_data: str | None = None
    eval_data: str | None = None
    train_tasks: int = Field(default=2048, ge=1)
    """How many tasks the environment makes for training."""
    eval_tasks: int = Field(default=128, ge=0)
    """How many held-out tasks success is measured on."""
    turn_timeout_s: float = Field(default=30.0, gt=0)
    """Longest time one `step` of the environment may take before that rollout is given up."""
