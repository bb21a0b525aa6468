"""Reward components, penalties as data, running normalisation, and the orchestrator that adds them up.

`breakdown`, `penalties`, `moments`, `metrics` and `diagnosis` are plain data and plain Python, for viewers too. The
orchestrator and its components need torch and load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..configs.lazy import loaded_when_used
from .breakdown import ComponentValue, Penalty, RewardBreakdown, StepReward

if TYPE_CHECKING:
    from .components import RewardComponent, RewardError, RewardInputs
    from .components.coherence import TrajectoryCoherenceAnalyzer
    from .components.curiosity import CuriosityDrivenRewardModule
    from .dynamics import DynamicsModel
    from .embedding import HashedEmbedder, pool_step_embeddings
    from .orchestrator import RewardOrchestrator
    from .penalties import PenaltyRule
    from .result import RewardResult

__all__ = [
    "ComponentValue",
    "CuriosityDrivenRewardModule",
    "DynamicsModel",
    "HashedEmbedder",
    "Penalty",
    "PenaltyRule",
    "RewardBreakdown",
    "RewardComponent",
    "RewardError",
    "RewardInputs",
    "RewardOrchestrator",
    "RewardResult",
    "StepReward",
    "TrajectoryCoherenceAnalyzer",
    "pool_step_embeddings",
]

__getattr__ = loaded_when_used(
    __name__,
    {
        "components": ("RewardComponent", "RewardError", "RewardInputs"),
        "components.coherence": ("TrajectoryCoherenceAnalyzer",),
        "components.curiosity": ("CuriosityDrivenRewardModule",),
        "dynamics": ("DynamicsModel",),
        "embedding": ("HashedEmbedder", "pool_step_embeddings"),
        "orchestrator": ("RewardOrchestrator",),
        "penalties": ("PenaltyRule",),
        "result": ("RewardResult",),
    },
)
