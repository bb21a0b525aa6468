"""Environments of the `verifiers` library: `pip install 'grpo-tui[verifiers]'`.

The library runs its own rollout and requests each completion from the agent: an `Environment` of verifiers 0.2 to 0.3
through a client (`env.py`), the harness of a verifiers 0.4 taskset over HTTP on loopback (`tasksets.py`). Everything
that a package overrides (state, tools, stop conditions, replies) therefore applies, and the package scores the finished
rollouts.
"""

from .env import VerifiersEnv
from .tasksets import TasksetEnv

__all__ = ["TasksetEnv", "VerifiersEnv"]
