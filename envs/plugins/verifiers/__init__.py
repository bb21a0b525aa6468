"""Environments of the `verifiers` library: `pip install 'grpo-tui[verifiers]'`.

The library runs its own rollout and asks the agent for each completion: an `Environment` of verifiers 0.2 to 0.3
through a client (`env.py`), the harness of a taskset of verifiers 0.4 over HTTP on loopback (`tasksets.py`). So
everything that a package overrides (state, tools, stop conditions, replies) applies, and it scores the finished
rollouts.
"""

from .env import VerifiersEnv
from .tasksets import TasksetEnv

__all__ = ["TasksetEnv", "VerifiersEnv"]
