"""The advantage that a teacher gives to the tokens of a rollout: `weight` · (log π_teacher − log π), by turn.

The advantage of a turn is the mean over its tokens (GKD, arXiv 2306.13649, with the gradient of the policy's own
samples: minus the reverse KL is the expected sum).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..breakdown import AdvantageFormula, AdvantageTerm
from .base import EPSILON

TEACHER = "teacher"
"""Name of the term."""
SENTENCE = "the teacher's log-prob minus the policy's, mean over the tokens of the turn"


def with_teacher(
    formula: AdvantageFormula | None, means: Sequence[float], weight: float, with_reward: bool
) -> AdvantageFormula | None:
    """Return `formula` with the teacher's term in each turn. None for a rollout without an advantage.

    means: log π_teacher − log π of each turn [S], mean over its tokens, nats. with_reward: keep the other terms.
    """
    if formula is None:
        return None
    kept = [formula.terms(turn) if with_reward else () for turn in range(len(means))]
    terms = [AdvantageTerm(mean, 0.0, None, 1, weight, TEACHER) for mean in means]
    sentence = f"{formula.sentence}; {TEACHER}: {SENTENCE}" if with_reward and formula.sentence else SENTENCE
    steps = tuple((*before, term) for before, term in zip(kept, terms, strict=True))
    return replace(formula, steps=steps, sentence=sentence, epsilon=formula.epsilon or EPSILON)
