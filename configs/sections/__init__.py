"""The sections of the configuration, one per file."""

from .base import BranchConfig as BranchConfig
from .base import EvaluationConfig as EvaluationConfig
from .base import LoggingConfig as LoggingConfig
from .base import Section as Section
from .data import DataConfig as DataConfig
from .environment import EnvironmentConfig as EnvironmentConfig
from .model import LoraSection as LoraSection
from .model import ModelConfig as ModelConfig
from .online import OnlineConfig as OnlineConfig
from .rewards import RewardsConfig as RewardsConfig
from .rollouts import RolloutsConfig as RolloutsConfig
from .training import SFTConfig as SFTConfig
from .training import TrainingConfig as TrainingConfig
