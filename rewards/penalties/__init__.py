"""Penalties as data: general rules that read an environment's tool declarations, and a user's own rules.

No torch here, so that a viewer can explain penalties. One file a kind of fault; `base.py` says what a rule is.
"""

from __future__ import annotations

from .answers import NoFinalAnswer
from .arguments import InvalidArgument
from .base import Episode, PenaltyRule, call_text, listed, shown
from .calls import UnknownTool, UnparsableCall
from .loading import PenaltyRuleError, load_rule
from .modality import WrongModality
from .prerequisites import MissingPrerequisite
from .rules import BUILT_IN, make_rules

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
