"""One step's reward as arithmetic, then the trajectory's, then the advantage: exactly the numbers of the record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style

from ....engine.runs.types import Penalty, StepReward, TrajectoryRecord
from ...advantage import equation, recomputed_text
from ...format import MINUS, count, fixed
from ...plain import Whole
from ...text import distinct_names, longest, wrap
from ..outline import has_step_rewards
from ..theme import Palette
from .learning_lines import learning_lines
from .pane import Line, Pane, wrapped

_PLACES = 4
"""Maximum number of decimals of a sum."""
_TERMS = 40
"""Most terms of a sum that are written out."""
_NUMBERS = 4  # columns: raw, normalised, weight, contribution


@dataclass
class RewardLines:
    """The reward of a step (by position) and of its rollout as lines of `width` cells."""

    palette: Palette
    width: int
    rollout: Whole
    step: int

    @property
    def record(self) -> TrajectoryRecord:
        return self.rollout.record

    @property
    def of_whole(self) -> bool:
        """Whether only the rollout has a reward."""
        return not has_step_rewards(self.record) and self.record.split != "eval"

    def all(self) -> list[Line]:
        p, record, reward = self.palette, self.record, self.reward
        learned = learning_lines(p, self.rollout, self.width)
        if self.of_whole:
            learned = learned if self.rollout.uses or record.served is not None else []
            if record.breakdown is None:
                return self._unknown("reward", "reward") + self._unknown("advantage", "advantage")
        elif reward is None:
            text = "No reward was recorded for this step." if record.trajectory.steps else "The agent took no step."
            if record.split == "eval":
                judge = record.trajectory.judged_by or "its answer alone"
                text = f"A rollout on a held-out task: judged by {judge}, not trained on."
            return [*self._wrapped(text, p.faint), Line(p), *self.of_step(), *learned]
        lines = [*self.of_step(), *self.of_rollout(), *self.advantage()]
        return [*lines, Line(p), *learned] if learned else lines

    @property
    def reward(self) -> StepReward | None:
        """The reward of the step, or of the rollout if steps have none."""
        steps, breakdown = self.record.trajectory.steps, self.record.breakdown
        if breakdown is None or not steps:
            return None
        if self.of_whole:
            return breakdown.steps[-1] if breakdown.steps else None
        index = steps[min(self.step, len(steps) - 1)].index
        return next((s for s in breakdown.steps if s.step == index), None)

    def of_step(self) -> list[Line]:
        """Return components, reasons and penalties or, for a rollout that is not trained on, its scores."""
        p, reward = self.palette, self.reward
        steps = self.record.trajectory.steps
        scores = steps[self.step].scores if self.step < len(steps) else ()
        reasons = [line for s in scores if s.why for line in self._wrapped(f"{s.name}: {s.why}", p.faint)]
        reasons += [Line(p)] if reasons else []
        if reward is None:
            score_lines = [line for s in scores for line in self._wrapped(f"{s.name} {fixed(s.value)}", p.text)]
            return [*score_lines, *reasons]
        lines = [] if self.of_whole and not reward.components else self._components(reward)
        penalties = [line for penalty in reward.penalties for line in penalty_lines(p, penalty, self.width)]
        if self.of_whole:
            return [*lines, *penalties, *reasons]
        lines += reasons
        return [
            *lines,
            *([Line(p), *penalties] if penalties else [Line(p).add("✓ no penalty in this step", p.good)]),
            Line(p),
        ]

    def of_rollout(self) -> list[Line]:
        """Return the sum of the steps, and notes on a sum that is incomplete or differs from the recorded total."""
        p, record, breakdown = self.palette, self.record, self.record.breakdown
        if breakdown is None:
            return self._unknown("reward", "reward")
        totals = [s.total for s in breakdown.steps]
        known = [t for t in totals if t is not None]
        if breakdown.total is None:
            lines = self._unknown("reward", "Σ the total")
        elif not has_step_rewards(record):
            lines = [Line(p).add("reward ", p.muted).add(fixed(breakdown.total), p.strong)]
        elif (len(known) == len(totals) and len(totals) > 1) or not record.unknown:
            lines = self._wrapped(summed(known, breakdown.total), p.text)
        else:
            lines = self._wrapped(f"stated reward {fixed(breakdown.total)}", p.text)
        for key in ("sum", "turns"):
            lines += self._wrapped(record.unknown.get(key, ""), p.warn)
        for what, name in (("weight", "weights"), ("missing", "components"), ("components", "components")):
            lines += self._unknown(what, name) if what in record.unknown else []
        return lines

    def advantage(self) -> list[Line]:
        p, record, width = self.palette, self.record, self.width
        if record.advantage is None:
            if not record.unknown:
                return []
            other = recomputed_text(self.rollout.recomputed)
            return self._unknown("advantage", "advantage") + self._wrapped(other, p.faint)
        step = record.step_advantages[self.step] if self.step < len(record.step_advantages) else None
        value = fixed(record.advantage, signed=True)
        name = "advantage " if len("advantage ") + len(value) <= width else "A "
        line = Line(p).add(name, p.muted).whole(value, p.sign(record.advantage), width - len(name))
        if step is not None:
            line.whole(f"  this step {fixed(step, signed=True)}", p.text, width - line.width)
        texts = equation(self.rollout.formula, self.step, step)
        return [line, *(line for text in texts for line in self._wrapped(text, p.faint))]

    def _wrapped(self, text: str, style: Style) -> list[Line]:
        return wrapped(self.palette, text, self.width, style)

    def _unknown(self, what: str, name: str) -> list[Line]:
        reason = self.record.unknown.get(what)
        return self._wrapped(f"{name}: not recorded" + (f" ({reason})" if reason else ""), self.palette.faint)

    def _components(self, reward: StepReward) -> list[Line]:
        p, width = self.palette, self.width
        table = [("component", "raw", "norm", "×w", "=")]
        values = list(reward.components.values())
        added, places = adding_up([c.contribution for c in values], reward.total)
        for (name, value), adds in zip(reward.components.items(), added, strict=True):
            normalised = fixed(value.normalized) if value.normalized != value.raw else "–"
            table.append((name, fixed(value.raw), normalised, fixed(value.weight), fixed(adds, places)))
        table.append(("Σ step", "", "", "", fixed(reward.total, places)))
        sizes = [max(len(row[i]) for row in table) + 1 for i in range(1, 1 + _NUMBERS)]
        kept = list(range(_NUMBERS))  # the last column holds the sum, so raw, norm and weight are dropped first
        while len(kept) > 1 and 4 + sum(sizes[i] for i in kept) > width:
            kept.pop(0)
        room = width - sum(sizes[i] for i in kept)
        spare = 1 if room >= 14 + len(kept) else 0
        names = max(1, min(longest(reward.components, 16), room - spare * len(kept)))
        shown = ["component", *distinct_names(list(reward.components), names), "Σ step"]
        lines = []
        for index, row in enumerate(table):
            head, total = index == 0, index == len(table) - 1
            if total:
                lines.append(Line(p).add("─" * (names + sum(sizes[i] + spare for i in kept)), p.border))
            line = Line(p).add(shown[index], p.muted if head else p.strong if total else p.text, cells=names)
            for i in kept:
                style = p.muted if head or i == 2 else p.strong if total else p.text
                if not head and not total and i == 3:
                    style = p.sign(values[index - 1].contribution)
                line.add(row[1 + i], p.faint if row[1 + i] == "–" else style, cells=sizes[i] + spare, align=">")
            lines.append(line)
        return lines


class RewardArithmetic(Pane):
    """Component, raw, normalised, × weight, = contribution; Σ, penalties, advantage and use in learning."""

    name = "reward"
    title = "reward of this step"
    _rollout: Whole | None = None
    _step = 0

    def put(self, rollout: Whole | None, step: int) -> None:
        self._rollout, self._step = rollout, step
        has_steps = rollout is not None and has_step_rewards(rollout.record)
        self.title = "reward of this step" if has_steps else "reward of the rollout"
        self.changed(keep_scroll=False)

    def build(self, width: int, height: int) -> list[Line]:
        return [] if self._rollout is None else RewardLines(self.palette, width, self._rollout, self._step).all()

    def rows_for(self, width: int) -> int:
        return max(1, len(self.build(width, 1_000)))


def penalty_lines(p: Palette, penalty: Penalty, width: int) -> list[Line]:
    """Return the lines of one penalty, `width` cells wide."""
    amount = fixed(penalty.amount) if penalty.amount else f"{MINUS}0.00"
    name = penalty.rule.replace("_", " ")
    head = Line(p).add("✗ ", p.bad_bold).add(name, p.bad_bold, most=max(1, width - 3 - len(amount)))
    lines = [head.gap().add(amount, p.bad_bold)]
    saw = ", ".join(f"{key} {_value(value)}" for key, value in penalty.saw.items())
    for label, text, style in (
        ("saw", saw, p.text),
        ("limit", penalty.limit, p.text),
        ("why", penalty.why, p.muted),
        ("right", penalty.right, p.good),
    ):
        for index, part in enumerate(wrap(str(text), max(8, width - 9)) if text else ()):
            line = Line(p).gap(2).add(f"{label}:" if index == 0 else "", p.faint, cells=7)
            lines.append(line.add(part, style))
    return lines


def _value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value, value)) if value else "none"
    if isinstance(value, float):
        return fixed(value)
    return "none" if value is None else str(value)


def adding_up(terms: Sequence[float | None], total: float | None) -> tuple[Sequence[float | None], int]:
    """Round terms so that they add up to the rounded total. Returns them and the decimals (two to four). If four are
    not enough, adjusts the last digit of the terms with the largest rounding error."""
    known = [t for t in terms if t is not None]
    if len(known) < len(terms) or total is None or not all(map(math.isfinite, (*known, total))):
        return terms, 2
    if abs(sum(known) - total) > 1e-5 * max(1.0, abs(total)):  # more than rounding
        return terms, 2  # the total contains something else
    places = 2
    while (missing := _missing(rounded := [round(t, places) for t in known], total, places)) and places < _PLACES:
        places += 1
    step = math.copysign(10.0**-places, missing)
    for i in sorted(range(len(known)), key=lambda i: (rounded[i] - known[i]) * step)[: abs(missing)]:
        rounded[i] += step
    return rounded, places


def _missing(rounded: Sequence[float], total: float, places: int) -> int:
    """Return the difference between rounded terms and total in units of the last digit."""
    return round((round(total, places) - sum(rounded)) * 10**places)


def summed(terms: Sequence[float], total: float) -> str:
    """Format `Σ steps = 0.05 − 0.02 = 0.03` with as many decimals as the sum needs, and many steps by their number."""
    rounded, places = adding_up(terms, total)
    if len(terms) > _TERMS:
        return f"Σ of {count(len(terms), 'step')} = {fixed(total, places)}"
    shown = [t or 0.0 for t in rounded]
    added = "".join(
        (f" {MINUS} " if t < 0 else " + ") + fixed(abs(t), places) if i else fixed(t, places)
        for i, t in enumerate(shown)
    )
    return f"Σ steps = {added} = {fixed(total, places)}"
