"""The rules of a run: the built-in ones at their configured amounts, then the user's own."""

from __future__ import annotations

from ...configs.sections.rewards import RewardsConfig
from .answers import NoFinalAnswer
from .arguments import InvalidArgument
from .base import PenaltyRule
from .calls import UnknownTool, UnparsableCall
from .loading import PenaltyRuleError, load_rule
from .modality import WrongModality
from .prerequisites import MissingPrerequisite

BUILT_IN: tuple[type[PenaltyRule], ...] = (
    UnparsableCall,
    UnknownTool,
    WrongModality,
    MissingPrerequisite,
    InvalidArgument,
    NoFinalAnswer,
)


def make_rules(config: RewardsConfig) -> list[PenaltyRule]:
    """All rules that cost something. Raises PenaltyRuleError for a user's rule that cannot be used."""
    rules = [rule(getattr(config.penalties, rule.id)) for rule in BUILT_IN] + [
        load_rule(own) for own in config.penalty_rules
    ]
    seen: set[str] = set()
    for rule in rules:
        if rule.id in seen:
            raise PenaltyRuleError(f"two penalty rules have the id {rule.id}: give your own class another id")
        seen.add(rule.id)
    return [rule for rule in rules if rule.amount]
