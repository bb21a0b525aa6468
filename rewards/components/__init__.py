"""The reward components, by name in `COMPONENTS`.

To add one, copy `PenaltyReward` in `given.py` and add the class to `EXTRA`. A class in your own file needs no entry.
Both get their weight from the configuration: `rewards.extra_components: {name: {weight: 0.1, class_path: …}}`.
"""

from __future__ import annotations

from ...configs.sections.rewards import ExtraComponentConfig, RewardsConfig
from ...envs.user_code import UserCodeError, find_class
from .base import Correctness, RewardComponent, RewardError, RewardInputs, Values
from .coherence import CoherenceReward
from .curiosity import CuriosityReward
from .given import EnvironmentReward, OverlongReward, PenaltyReward, TaskReward

__all__ = ["Correctness", "RewardComponent", "RewardError", "RewardInputs", "Values", "make_components"]

EXTRA: dict[str, type[RewardComponent]] = {"overlong": OverlongReward}
"""Optional components of the package, available by name in `rewards.extra_components`."""


def make_components(config: RewardsConfig, seed: int) -> dict[str, RewardComponent]:
    """Create the components of a run by name, in the order of summation.

    Raises RewardError if one of `extra_components` is unknown or unusable.
    """
    built_in: dict[str, RewardComponent] = {
        "task": TaskReward(config),
        "environment": EnvironmentReward(config),
        "curiosity": CuriosityReward(config, seed),
        "coherence": CoherenceReward(),
        "penalty": PenaltyReward(config),
    }
    return built_in | {name: _extra(name, extra) for name, extra in config.extra_components.items()}


def _extra(name: str, config: ExtraComponentConfig) -> RewardComponent:
    where = f"rewards.extra_components.{name}"
    if config.class_path is None:
        if name not in EXTRA:
            raise RewardError(
                f"{where}: there is no built-in component of this name, only {', '.join(EXTRA)}. For your own class, "
                "give class_path: path/to/file.py:Class"
            )
        found = EXTRA[name]
    else:
        where = f"{where}: {config.class_path}"
        try:
            found = find_class(config.class_path)
        except UserCodeError as error:
            raise RewardError(f"rewards.extra_components.{name}: {error}") from error
        if not issubclass(found, RewardComponent) or found.compute is RewardComponent.compute:
            raise RewardError(
                f"{where} is not a reward component: derive it from grpo_tui.rewards.components.RewardComponent and "
                "write compute(self, batch)"
            )
    try:
        return found(**config.options)
    except (TypeError, ValueError) as error:
        raise RewardError(f"{where} does not take these options: {error}") from error
