"""Trajectories, tools, environments and the contract of the agent that acts in them.

`base` is the class that an author of environments extends. `multi_turn` runs many rollouts of it together. `calls`
reads calls from the agent's text, and `checks` tests them against the tool's declaration. `guard` contains failures of
an environment. `loading` finds a class by its name. `calculator` is the smallest whole example. `plugins` adapts
environments of other projects. Names load when they are first used, so this import costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..configs.lazy import loaded_when_used

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

__getattr__ = loaded_when_used(
    __name__,
    {
        "agent": ("Agent", "AgentSession", "AgentTurn", "Message"),
        "base": ("Demonstrator", "Env", "Picture", "StepResult"),
        "calculator": ("CalculatorEnv",),
        "calls": ("ToolCall", "parse_call"),
        "loading": ("EnvLoadError", "canonical_config", "load_env_class"),
        "multi_turn": ("MultiTurnEnv",),
        "tools": ("Argument", "ToolSpec"),
        "trajectory": ("Overlay", "Step", "StepContext", "TokenArrays", "Trajectory"),
    },
)
