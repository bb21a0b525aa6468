"""Adapters for environments from other projects. Each needs an extra of the package and loads when a run names it."""

import importlib
from types import ModuleType

PLUGINS = {
    "gymnasium": "grpo_tui.envs.plugins.text_games.TextGameEnv",
    "openenv": "grpo_tui.envs.plugins.openenv.OpenEnvEnv",
    "reasoning-gym": "grpo_tui.envs.plugins.gym.ReasoningGymEnv",
    "textarena": "grpo_tui.envs.plugins.text_games.TextGameEnv",
    "verifiers": "grpo_tui.envs.plugins.verifiers.VerifiersEnv",
    "verifiers-taskset": "grpo_tui.envs.plugins.verifiers.TasksetEnv",
}
"""The class for each short name in `environment.class_path` and in a row's `env_class_path`."""


def optional(module: str, extra: str) -> ModuleType:
    """Import a library from an extra. Raises ValueError that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise ValueError(f"{extra} is not installed ({problem}); pip install 'grpo-tui[{extra}]'") from problem
