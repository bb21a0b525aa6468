"""A teacher's advantage for a turn: `weight` · (log π_teacher − log π − mean).

The log-probs are means over the tokens of the turn. The subtracted mean is over all tokens of the batch. It does not
change the expected gradient, which is that of the reverse KL (GKD, arXiv 2306.13649), but lowers its variance: far from
the teacher, nearly every sampled token has a negative value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..breakdown import AdvantageFormula, AdvantageTerm

TEACHER = "teacher"
"""Name of the term."""
SENTENCE = "the teacher's log-prob minus the policy's, over the tokens of the turn, against the mean of the batch"


def with_teacher(
    formula: AdvantageFormula | None, leads: Sequence[float], mean: float, size: int, weight: float, with_reward: bool
) -> AdvantageFormula | None:
    """Add the teacher's term to each turn of `formula`. Returns None for a rollout without an advantage.

    leads: log π_teacher − log π of each turn [S], mean over its tokens, nats. mean: over all tokens of the `size`
    rollouts of the batch. with_reward: keep the other terms.
    """
    if formula is None:
        return None
    kept = [formula.terms(turn) if with_reward else () for turn in range(len(leads))]
    terms = [AdvantageTerm(lead, mean, None, size, weight, TEACHER) for lead in leads]
    sentence = f"{formula.sentence}; {TEACHER}: {SENTENCE}" if with_reward and formula.sentence else SENTENCE
    steps = tuple((*before, term) for before, term in zip(kept, terms, strict=True))
    return replace(formula, steps=steps, sentence=sentence)
