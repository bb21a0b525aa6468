"""Reward components, penalties as data, running normalisation, and the orchestrator that adds them up.

`breakdown`, `penalties`, `moments`, `metrics` and `diagnosis` are plain data and plain Python, for viewers too; what
needs torch (the orchestrator and its components) is imported when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .breakdown import ComponentValue, Penalty, RewardBreakdown, StepReward

if TYPE_CHECKING:
    from .components import RewardComponent, RewardInputs
    from .components.coherence import TrajectoryCoherenceAnalyzer
    from .curiosity import CuriosityDrivenRewardModule
    from .dynamics import DynamicsModel
    from .embedding import HashedEmbedder, pool_step_embeddings
    from .errors import RewardError
    from .orchestrator import RewardOrchestrator
    from .penalties import PenaltyRule
    from .result import RewardResult

_HEAVY = {
    "CuriosityDrivenRewardModule": "curiosity",
    "DynamicsModel": "dynamics",
    "HashedEmbedder": "embedding",
    "PenaltyRule": "penalties",
    "RewardComponent": "components",
    "RewardError": "errors",
    "RewardInputs": "components",
    "RewardOrchestrator": "orchestrator",
    "RewardResult": "result",
    "TrajectoryCoherenceAnalyzer": "components.coherence",
    "pool_step_embeddings": "embedding",
}

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


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(importlib.import_module(f".{_HEAVY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
