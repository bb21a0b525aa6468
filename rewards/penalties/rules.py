"""Load a run's rules, the built-in ones at their configured amounts and then the user's, and check steps with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...configs.sections.rewards import PenaltyRuleConfig, RewardsConfig
from ...envs.trajectory import Step, Trajectory
from ...envs.user_code import UserCodeError, find_class
from ..breakdown import Penalty
from ..components.base import RewardError
from .base import Episode, PenaltyRule
from .built_in import BUILT_IN


def load_rule(config: PenaltyRuleConfig) -> PenaltyRule:
    """Load the rule that `config` names. Raises RewardError with a one-sentence message if there is none."""
    where = f"rewards.penalty_rules: {config.class_path}"
    try:
        found = find_class(config.class_path)
    except UserCodeError as error:
        raise RewardError(f"rewards.penalty_rules: {error}") from error
    if not issubclass(found, PenaltyRule):
        raise RewardError(f"{where} is not a penalty rule: derive it from grpo_tui.rewards.penalties.PenaltyRule")
    if found.check is PenaltyRule.check:
        raise RewardError(f"{where} has no method check(self, episode, step)")
    if not found.id:
        raise RewardError(f'{where} has no id: give the class one, such as id = "too_many_zooms"')
    try:
        rule = found(**({} if config.amount is None else {"amount": config.amount}), **config.options)
    except (TypeError, ValueError) as error:
        raise RewardError(f"{where} does not take these options: {error}") from error
    if not rule.amount <= 0:
        raise RewardError(f"{where} has amount {rule.amount}: a penalty is a negative number, or 0")
    return rule


def make_rules(config: RewardsConfig) -> list[PenaltyRule]:
    """Create all rules with a non-zero cost. Raises RewardError if a user's rule cannot be used."""
    rules = [rule(getattr(config.penalties, rule.id)) for rule in BUILT_IN] + [
        load_rule(path) for path in config.penalty_rules
    ]
    seen: set[str] = set()
    for rule in rules:
        if rule.id in seen:
            raise RewardError(f"two penalty rules have the id {rule.id}: give your own class another id")
        seen.add(rule.id)
    return [rule for rule in rules if rule.amount]


def check_steps(
    rules: Sequence[PenaltyRule], trajectory: Trajectory, keys: Sequence[str] | None = None
) -> list[tuple[Penalty, ...]]:
    """Return the penalties of each step, in the order of the rules. keys: the canonical action of each step, if known.

    Raises RewardError, which names rule and location, if a rule fails.
    """
    episode = Episode(trajectory, keys)
    return [tuple(p for rule in rules if (p := _checked(rule, episode, step)) is not None) for step in episode.steps]


def _checked(rule: PenaltyRule, episode: Episode, step: Step) -> Penalty | None:
    try:
        penalty: object = rule.check(episode, step)
    except Exception as error:
        raise RewardError(
            f"penalty rule {rule.id} failed at step {step.index} of trajectory {episode.trajectory.id}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if penalty is None:
        return None
    if not isinstance(penalty, Penalty) or not penalty.amount <= 0:
        raise RewardError(f"penalty rule {rule.id} must return None or a Penalty with an amount <= 0")
    return penalty if penalty.step == step.index else replace(penalty, step=step.index)
