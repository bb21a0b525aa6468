"""Environments of the `verifiers` library: `pip install 'grpo-tui[verifiers]'`.

The environment runs its own rollout (`Environment.rollout`), with a client that passes each request for a completion to
the agent. So everything that a package overrides (state, tools, stop conditions, replies) applies, and its rubric
scores the finished states.
"""

from .env import VerifiersEnv

__all__ = ["VerifiersEnv"]
