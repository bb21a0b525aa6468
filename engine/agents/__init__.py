"""Policies that act in an environment: a transformers model with a KV cache, and a scripted agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...configs.lazy import loaded_when_used

if TYPE_CHECKING:
    from .scripted import ScriptedAgent
    from .settings import AgentSettings
    from .transformers_agent import TransformersAgent

__all__ = ["AgentSettings", "ScriptedAgent", "TransformersAgent"]

__getattr__ = loaded_when_used(
    __name__,
    {
        "scripted": ("ScriptedAgent",),
        "settings": ("AgentSettings",),
        "transformers_agent": ("TransformersAgent",),
    },
)
