"""Environments of the `verifiers` library, as they are: `pip install 'grpo-tui[verifiers]'`.

The environment runs its own rollout (`Environment.rollout`), with a client that hands each request for a completion to
the agent here. So whatever a package overrides (state, tools, stop conditions, replies) is in force, and its rubric
scores the finished states by itself.
"""

from .env import VerifiersEnv

__all__ = ["VerifiersEnv"]
