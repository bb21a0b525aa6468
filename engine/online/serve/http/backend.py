"""What the HTTP side asks of the engine's process."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from .....configs.sections import EnvironmentConfig
from .....envs.base import Env
from ....agents.remote.pool import Standing
from .schema import Feedback


class Backend(Protocol):
    """Called from the HTTP thread."""

    model: str
    """The name under which the served policy is asked for; `<name>@<version>` asks for one snapshot."""
    environment: EnvironmentConfig
    env_class: type[Env] | None
    sees: bool
    """Whether the served policy is shown pictures."""
    max_trajectory_tokens: int
    samples: int
    """Trajectories that are sampled for a request."""
    timeout_s: float
    """How long a caller waits."""

    def count_tokens(self, text: str) -> int:
        """Tokens of a text."""
        ...

    def versions(self) -> list[int]:
        """Snapshots that can be asked for, besides 0, the policy as it was loaded."""
        ...

    def serving_version(self) -> int:
        """The version that answers who names none."""
        ...

    def servers(self) -> Standing | None:
        """How many rollout servers can answer; None where the engine's own process does."""
        ...

    def learning(self) -> str:
        """`running`, `paused`, `off`, or `dead`: how the update worker stands."""
        ...

    def feedback(self, feedback: Feedback, source: str) -> Awaitable[Mapping[str, Any]]:
        """What became of a person's word on an answer; `source` as in `Request.source`.

        Raises KeyError for an answer that is not remembered.
        """
        ...

    def unjudged(self, limit: int) -> Awaitable[Mapping[str, Any]]:
        """So many remembered answers without feedback, the least certain first."""
        ...

    def feedback_outcome(self, identifier: str) -> Awaitable[Mapping[str, Any]]:
        """How far earlier feedback on an answer is. Raises KeyError for an answer without any."""
        ...
