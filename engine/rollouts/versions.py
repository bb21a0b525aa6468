"""Agents that act as a policy which was published to them, not as the one that is under training."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from ...envs.agent import Agent
from ...envs.spans import Spans


class Version(Protocol):
    """A policy as it was after `step` optimiser steps."""

    @property
    def step(self) -> int:
        """Optimiser steps that it had made."""
        ...


@runtime_checkable
class NotesSpans(Protocol):
    """An agent that notes when each of its servers wrote."""

    spans: Spans


@runtime_checkable
class VersionedAgent(Agent, Protocol):
    """An agent whose policy lives elsewhere."""

    def publish(self, step: int) -> Version:
        """Make the present policy, after `step` optimiser steps, the acting version, unless it is."""
        ...

    def holding(self, version: Any) -> AbstractContextManager[None]:
        """This version can act as long as one is inside, whichever come after it."""
        ...

    def dismiss(self, server: str, reason: str) -> bool:
        """A server writes no more for this agent, unless it is the last one; whether that is so."""
        ...

    def measured(self, servers: Mapping[str, tuple[float, float]]) -> None:
        """Take the mismatch (nats per token) and the age (steps) of the turns that each server wrote for a step."""
        ...

    def acting_as(self, version: Any) -> AbstractContextManager[None]:
        """This version acts in the sessions that the calling thread starts inside."""
        ...
