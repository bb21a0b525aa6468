"""Policies that act in an environment: a transformers model with a kept KV cache, and a scripted one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .scripted import ScriptedAgent
    from .settings import AgentSettings
    from .transformers_agent import TransformersAgent

__all__ = ["AgentSettings", "ScriptedAgent", "TransformersAgent"]


def __getattr__(name: str) -> Any:
    """Torch is loaded when an agent is wanted, not when the package is."""
    if name == "ScriptedAgent":
        from . import scripted

        return scripted.ScriptedAgent
    if name == "AgentSettings":
        from . import settings

        return settings.AgentSettings
    if name == "TransformersAgent":
        from . import transformers_agent

        return transformers_agent.TransformersAgent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
