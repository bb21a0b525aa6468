"""Policies that act in an environment: a transformers model with a kept KV cache, and a scripted one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .scripted import ScriptedAgent
    from .transformers_agent import AgentSettings, TransformersAgent

__all__ = ["AgentSettings", "ScriptedAgent", "TransformersAgent"]


def __getattr__(name: str) -> Any:
    """Torch is loaded when an agent is wanted, not when the package is."""
    if name == "ScriptedAgent":
        from . import scripted

        return scripted.ScriptedAgent
    if name in ("AgentSettings", "TransformersAgent"):
        from . import transformers_agent

        return getattr(transformers_agent, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
