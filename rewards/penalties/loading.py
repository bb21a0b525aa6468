"""A user's own rule, named in the configuration."""

from __future__ import annotations

from ...configs.errors import GrpoTuiError
from ...configs.sections.rewards import PenaltyRuleConfig
from ...envs.user_code import UserCodeError, find_class
from .base import PenaltyRule


class PenaltyRuleError(GrpoTuiError, ValueError):
    """A rule of the user's could not be loaded or failed; the message says which, where and why."""


def load_rule(config: PenaltyRuleConfig) -> PenaltyRule:
    """The rule that `config` names, ready to check.

    Raises PenaltyRuleError, in one sentence, when there is no such class or it is no penalty rule.
    """
    where = f"rewards.penalty_rules: {config.class_path}"
    try:
        found = find_class(config.class_path)
    except UserCodeError as error:
        raise PenaltyRuleError(f"rewards.penalty_rules: {error}") from error
    if not issubclass(found, PenaltyRule):
        raise PenaltyRuleError(f"{where} is no penalty rule: derive it from grpo_tui.rewards.penalties.PenaltyRule")
    if found.check is PenaltyRule.check:
        raise PenaltyRuleError(f"{where} has no method check(self, episode, step)")
    if not found.id:
        raise PenaltyRuleError(f'{where} has no id: give the class one, such as id = "too_many_zooms"')
    try:
        rule = found(**({} if config.amount is None else {"amount": config.amount}), **config.options)
    except (TypeError, ValueError) as error:
        raise PenaltyRuleError(f"{where} does not take these options: {error}") from error
    if not rule.amount <= 0:
        raise PenaltyRuleError(f"{where} has amount {rule.amount}: a penalty is a negative number, or 0")
    return rule
