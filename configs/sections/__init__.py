"""One file a section of the configuration. Each room reads its own."""

from .base import Section
from .data import DataConfig
from .environment import EnvironmentConfig
from .evaluation import EvaluationConfig
from .logging import LoggingConfig
from .model import LoraSection, ModelConfig
from .online import KLConfig, OnlineConfig
from .rewards import RewardsConfig
from .rollouts import RolloutsConfig
from .sft import SFTConfig
from .training import TrainingConfig

__all__ = [
    "DataConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "KLConfig",
    "LoggingConfig",
    "LoraSection",
    "ModelConfig",
    "OnlineConfig",
    "RewardsConfig",
    "RolloutsConfig",
    "SFTConfig",
    "Section",
    "TrainingConfig",
]
