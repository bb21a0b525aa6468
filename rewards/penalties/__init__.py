"""Penalties as data: general rules that read an environment's tool declarations, and a user's own rules.

No torch here, so viewers can explain penalties. `base.py` defines a rule. `built_in.py` holds those of the package.
"""

from __future__ import annotations

from .base import Episode, PenaltyRule, call_text, listed, shown
from .built_in import (
    BUILT_IN,
    InvalidArgument,
    MissingPrerequisite,
    NoFinalAnswer,
    UnknownTool,
    UnparsableCall,
    WrongModality,
)
from .rules import PenaltyRuleError, load_rule, make_rules

__all__ = [
    "BUILT_IN",
    "Episode",
    "InvalidArgument",
    "MissingPrerequisite",
    "NoFinalAnswer",
    "PenaltyRule",
    "PenaltyRuleError",
    "UnknownTool",
    "UnparsableCall",
    "WrongModality",
    "call_text",
    "listed",
    "load_rule",
    "make_rules",
    "shown",
]
