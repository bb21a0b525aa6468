"""Trajectories, tools, environments, and the interface of the agent that acts in them.

Environment authors subclass `base.Env`. `multi_turn` runs many of its rollouts together. `calls` parses tool calls from
the agent's text, and `checks` validates them against the tool's declaration. `guard` isolates failures of an
environment. `loading` finds a class by name. `calculator` is the smallest complete example. `plugins` adapts
environments from other projects. Names load on first use, so this import is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import Agent as Agent
    from .agent import AgentSession as AgentSession
    from .agent import AgentTurn as AgentTurn
    from .agent import Message as Message
    from .base import Demonstrator as Demonstrator
    from .base import Env as Env
    from .base import Picture as Picture
    from .base import StepResult as StepResult
    from .calculator import CalculatorEnv as CalculatorEnv
    from .calls import ToolCall as ToolCall
    from .calls import parse_call as parse_call
    from .loading import EnvLoadError as EnvLoadError
    from .loading import canonical_config as canonical_config
    from .loading import load_env_class as load_env_class
    from .multi_turn import MultiTurnEnv as MultiTurnEnv
    from .tools import Argument as Argument
    from .tools import ToolSpec as ToolSpec
    from .trajectory import Overlay as Overlay
    from .trajectory import Step as Step
    from .trajectory import StepContext as StepContext
    from .trajectory import TokenArrays as TokenArrays
    from .trajectory import Trajectory as Trajectory


def __getattr__(name: str) -> object:
    for home in ("agent", "tools", "trajectory", "content", "base", "calls", "loading", "multi_turn", "calculator"):
        found = None if name.startswith("_") else vars(import_module(f".{home}", __name__)).get(name)
        if getattr(found, "__module__", "") == f"{__name__}.{home}":
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
