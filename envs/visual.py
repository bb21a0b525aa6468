"""The demonstration's environment under its public name: `grpo_tui.envs.visual.VisualEnv`."""

from ..engine.demonstration.visual import VisualEnv

__all__ = ["VisualEnv"]
