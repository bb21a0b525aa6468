"""The public name of the demonstration's environment: `grpo_tui.envs.visual.VisualEnv`."""

from ..engine.demonstration.visual import VisualEnv

__all__ = ["VisualEnv"]
