"""The settings of an agent."""

from __future__ import annotations

from dataclasses import dataclass

from .sampling import SamplingSettings


@dataclass(frozen=True)
class AgentSettings:
    """How tokens are drawn, and when a turn or a trajectory ends.

    A turn ends with the model's end-of-turn token, one of `stop_strings`, or after `max_turn_tokens` tokens. A
    trajectory (prompt, turns and observations) has at most `max_trajectory_tokens` tokens, and all its turns at most
    `max_new_tokens`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_turn_tokens: int = 256
    max_trajectory_tokens: int = 4096
    stop_strings: tuple[str, ...] = ()
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        limits = (self.max_turn_tokens, self.max_trajectory_tokens, self.max_new_tokens)
        if any(limit is not None and limit < 1 for limit in limits):
            raise ValueError("max_turn_tokens, max_trajectory_tokens and max_new_tokens must be at least 1")
        _ = self.sampling  # its values are checked there

    @property
    def sampling(self) -> SamplingSettings:
        return SamplingSettings(self.temperature, self.top_p, self.top_k)
