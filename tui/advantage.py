"""Explain an advantage in words: the recorded formula with the numbers that were used then."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.runs.read.rollouts import MOST_OF_GROUP
from ..engine.runs.types import AdvantageFormula, AdvantageTerm, TrajectoryRecord, TrajectoryRow, comparison
from ..rewards.advantages.base import EPSILON, compared, spread
from .format import MINUS, fixed

FILTERED = "The group has no signal and was filtered out: the advantage in the loss is 0."
SAME = 1e-9
"""A standard deviation below this counts as zero."""


def formula_of(record: TrajectoryRecord, group: Sequence[TrajectoryRow]) -> AdvantageFormula | None:
    """Return the recorded formula. If there is none, as in records of other trainers, infer the form that was used.

    Exactly one form must give the recorded advantage of every rollout of the group (two or more). Otherwise return
    None.
    """
    total = record.reward
    if record.formula is not None or record.advantage is None or total is None:
        return record.formula
    pairs = [(r.reward, r.advantage) for r in group if r.reward is not None and r.advantage is not None]
    if len(pairs) < 2 or len(pairs) < len(group) or len(group) == MOST_OF_GROUP:
        return None
    peers = spread([reward for reward, _ in pairs])
    fitting = []
    for scale, std in (("none", None), ("group", peers.std)):
        found = [(compared(reward, peers, std).result(EPSILON), advantage) for reward, advantage in pairs]
        # other trainers round what they record
        if all(abs(a - b) <= 1e-4 * max(1.0, abs(b)) for a, b in found):
            sentence = comparison("the return", "the {size} rollouts of its group", scale)
            fitting.append(AdvantageFormula("group", scale, EPSILON, ((compared(total, peers, std),),), sentence))
    return fitting[0] if len(fitting) == 1 else None


def recomputed(record: TrajectoryRecord, group: Sequence[TrajectoryRow]) -> AdvantageTerm | None:
    """Return the advantage that GRPO would have given to a rollout of another trainer.

    Return None if an advantage is recorded, if not all rewards of the group are known, or if the group is too large.
    """
    total = record.reward
    rewards = [] if len(group) == MOST_OF_GROUP else [r.reward for r in group if r.reward is not None]
    if record.advantage is not None or total is None or len(rewards) < 2 or len(rewards) < len(group):
        return None
    peers = spread(rewards)
    return compared(total, peers, peers.std)


def recomputed_text(term: AdvantageTerm | None) -> str:
    """Format a recomputed advantage in words, marked as recomputed. Empty for None."""
    if term is None:
        return ""
    if not term.std or term.std < SAME:
        return "recomputed: 0, all rewards of the group are equal"
    return f"recomputed, GRPO's: {_term(term, EPSILON, 2, False)} = {fixed(term.result(EPSILON), signed=True)}"


def equation(formula: AdvantageFormula | None, step: int, advantage: float | None) -> list[str]:
    """Return the formula with its numbers, one term per line, then a sentence about the comparison; or only a sentence.

    advantage: the one shown with the formula. A formula with another result is not shown.
    """
    if formula is None:
        return ["The formula was not recorded."]
    terms = formula.terms(step)
    if not terms:
        return ["This step has no advantage of its own."]
    if all(t.size == 1 and t.std is None and t.mean == 0 for t in terms):
        return [formula.sentence or "The reward itself, without a baseline."]
    if all(t.std == 0 and t.value == t.mean for t in terms):
        if max(t.size for t in terms) == 1:
            return ["No other rollout of the group reached this step: no advantage."]
        return ["All returns of the group are equal: no advantage, no gradient."]
    computed = sum(t.result(formula.epsilon) for t in terms)
    if advantage is not None and abs(computed - advantage) > 0.005 * max(1.0, abs(computed)):
        if advantage == 0:
            return [FILTERED]
        return [f"The loss used a different advantage. The formula gives {fixed(computed, signed=True)}."]
    places = next((n for n in range(2, 6) if _is_exact(formula, terms, advantage, n)), 6)
    shown = [t for t in terms if not (t.std == 0 and abs(t.value - t.mean) < SAME)]
    parts = [_term(t, formula.epsilon, places, len(terms) > 1) for t in shown]
    equal = " and ".join(t.name for t in terms if t not in shown)
    nothing = f"; {equal} adds nothing: all compared values are equal" if equal else ""
    lines = [f"{'=' if i == 0 else '+'} {part}" for i, part in enumerate(parts)]
    return [*lines, _compared(formula, terms) + nothing]


def _term(term: AdvantageTerm, epsilon: float, places: int, several: bool) -> str:
    sign = MINUS if term.mean >= 0 else "+"
    text = f"{fixed(term.value, places)} {sign} {fixed(abs(term.mean), places)}"
    if term.std is not None:
        divisor = fixed(term.std, places)
        if epsilon > 0.005 * term.std:
            divisor = f"({divisor} + {epsilon:g})"
        text = f"({text}) ÷ {divisor}"
    if term.weight != 1:
        text = f"{fixed(term.weight, 2)} × {text if term.std is not None else f'({text})'}"
    return f"{text} {term.name}" if several and term.name else text


def _compared(formula: AdvantageFormula, terms: Sequence[AdvantageTerm]) -> str:
    sizes = sorted({t.size for t in terms})
    size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    sentence = formula.sentence or comparison("the return", "the {size} that it was compared with", formula.scale)
    return sentence.replace("{size}", size)


def _is_exact(formula: AdvantageFormula, terms: Sequence[AdvantageTerm], advantage: float | None, places: int) -> bool:
    total = 0.0
    for t in terms:
        std = None if t.std is None else round(t.std, places)
        if std is not None and std + formula.epsilon <= 0:
            return False
        shown = AdvantageTerm(round(t.value, places), round(t.mean, places), std, t.size, t.weight)
        total += shown.result(formula.epsilon)
    meant = sum(t.result(formula.epsilon) for t in terms) if advantage is None else advantage
    return abs(total - meant) < 0.006
