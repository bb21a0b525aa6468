"""One step's reward as arithmetic, then the trajectory's, then the advantage: exactly the numbers of the record."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....engine.runs.types import AdvantageFormula, Score, StepReward, TrajectoryRecord
from ...advantage import equation
from ...format import MINUS, fixed
from ...text import distinct_names
from ..outline import has_step_rewards
from .learning_lines import Learning, learning_lines
from .line import Line, wrapped
from .pane import Pane
from .penalty import penalty_lines

_PLACES = 4
"""Decimals of a sum at most."""
_INEXACT = 1e-5
"""The largest rounding error of recorded terms against their total."""
_NUMBERS = 4  # columns: raw, normalised, weight, contribution


class RewardArithmetic(Pane):
    """Component, raw, normalised, × weight, = contribution; Σ, penalties, advantage and use in learning."""

    title = "reward of this step"

    def __init__(self) -> None:
        super().__init__("reward")
        self.record: TrajectoryRecord | None = None
        self.step = 0
        self.formula: AdvantageFormula | None = None
        self.learning = Learning()
        self.recomputed = ""

    def put(
        self,
        record: TrajectoryRecord | None,
        step: int,
        formula: AdvantageFormula | None = None,
        learning: Learning | None = None,
        recomputed: str = "",
    ) -> None:
        """Show a trajectory at a step. `recomputed` is the GRPO advantage of a record without one."""
        self.record, self.step, self.formula, self.recomputed = record, step, formula, recomputed
        self.learning = learning or Learning()
        self.title = (
            "reward of this step" if record is not None and has_step_rewards(record) else "reward of the rollout"
        )
        self.changed(keep_scroll=False)

    def _reward(self) -> StepReward | None:
        record = self.record
        if record is None or record.breakdown is None or not record.trajectory.steps:
            return None
        index = record.trajectory.steps[min(self.step, len(record.trajectory.steps) - 1)].index
        return next((s for s in record.breakdown.steps if s.step == index), None)

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        record = self.record
        if record is None:
            return []
        learned = learning_lines(p, record, self.learning, width)
        reward = self._reward()
        if not has_step_rewards(record) and record.split != "eval":
            return self._card(record, width, learned if self.learning.uses or record.served is not None else [])
        if reward is None:
            text = "No reward was recorded for this step." if record.trajectory.steps else "The agent took no step."
            if record.split == "eval":
                judge = record.trajectory.judged_by or "its answer alone"
                text = f"A rollout on held-out tasks: judged by {judge}, and not trained on."
            said = [*wrapped(p, text, width, p.faint), Line(p)]
            return [*said, *self._scores(record, width), *learned]
        lines = self._components(reward, width) + self._reasons(record, width)
        if reward.penalties:
            lines.append(Line(p))
            for penalty in reward.penalties:
                lines += penalty_lines(p, penalty, width)
        else:
            lines.append(Line(p).add("✓ no penalty in this step", p.good))
        lines.append(Line(p))
        lines += self._trajectory(record, width)
        return [*lines, Line(p), *learned] if learned else lines

    def _card(self, record: TrajectoryRecord, width: int, learned: list[Line]) -> list[Line]:
        p, breakdown = self.palette, record.breakdown
        if breakdown is None:
            return self._unknown(record, "reward", "reward", width) + self._unknown(
                record, "advantage", "advantage", width
            )
        whole = breakdown.steps[-1] if breakdown.steps else None
        lines = self._components(whole, width) if whole is not None and whole.components else []
        for penalty in whole.penalties if whole is not None else ():
            lines += penalty_lines(p, penalty, width)
        lines += self._reasons(record, width)
        lines += self._trajectory(record, width)
        return [*lines, Line(p), *learned] if learned else lines

    def rows_for(self, width: int) -> int:
        return len(self.build(width, 1_000)) if self.record is not None else 1

    def _components(self, reward: StepReward, width: int) -> list[Line]:
        p = self.palette
        table = [("component", "raw", "norm", "×w", "=")]
        values = list(reward.components.values())
        added, places = adding_up([c.contribution for c in values], reward.total)
        for (name, value), adds in zip(reward.components.items(), added, strict=True):
            normalised = fixed(value.normalized) if value.normalized != value.raw else "–"
            table.append((name, fixed(value.raw), normalised, fixed(value.weight), fixed(adds, places)))
        table.append(("Σ step", "", "", "", fixed(reward.total, places)))
        sizes = [max(len(row[i]) for row in table) + 1 for i in range(1, 1 + _NUMBERS)]
        kept = list(range(_NUMBERS))  # the sum is in the last column: raw, norm and weight go first where it is narrow
        while len(kept) > 1 and 4 + sum(sizes[i] for i in kept) > width:
            kept.pop(0)
        room = width - sum(sizes[i] for i in kept)
        spare = 1 if room >= 14 + len(kept) else 0
        names = max(1, min(16, room - spare * len(kept)))
        shown = ["component", *distinct_names(list(reward.components), names), "Σ step"]
        lines = []
        for at, row in enumerate(table):
            head, total = at == 0, at == len(table) - 1
            if total:
                lines.append(Line(p).add("─" * (names + sum(sizes[i] + spare for i in kept)), p.border))
            line = Line(p).add(shown[at], p.muted if head else p.strong if total else p.text, cells=names)
            for i in kept:
                style = p.muted if head or i == 2 else p.strong if total else p.text
                if not head and not total and i == 3:
                    style = p.sign(values[at - 1].contribution)
                line.add(row[1 + i], p.faint if row[1 + i] == "–" else style, cells=sizes[i] + spare, align=">")
            lines.append(line)
        return lines

    def _scores(self, record: TrajectoryRecord, width: int) -> list[Line]:
        """Return scores of reward functions that were not used as a reward."""
        p = self.palette
        told = (f"{score.name} {fixed(score.value)}" for score in self._scores_of_step(record))
        return [*(line for text in told for line in wrapped(p, text, width, p.text)), *self._reasons(record, width)]

    def _reasons(self, record: TrajectoryRecord, width: int) -> list[Line]:
        p = self.palette
        reasons = (f"{score.name}: {score.why}" for score in self._scores_of_step(record) if score.why)
        lines = [line for text in reasons for line in wrapped(p, text, width, p.faint)]
        return [*lines, Line(p)] if lines else []

    def _scores_of_step(self, record: TrajectoryRecord) -> Sequence[Score]:
        steps = record.trajectory.steps
        return steps[self.step].scores if self.step < len(steps) else ()

    def _trajectory(self, record: TrajectoryRecord, width: int) -> list[Line]:
        p = self.palette
        breakdown = record.breakdown
        assert breakdown is not None
        totals = [s.total for s in breakdown.steps]
        known = [t for t in totals if t is not None]
        lines: list[Line] = []
        if breakdown.total is None:
            lines += self._unknown(record, "reward", "Σ the total", width)
        elif not has_step_rewards(record):
            lines.append(Line(p).add("reward ", p.muted).add(fixed(breakdown.total), p.strong))
        elif (len(known) == len(totals) and len(totals) > 1) or not record.unknown:
            lines += wrapped(p, summed(known, breakdown.total), width, p.text)
        else:
            lines += wrapped(p, f"stated reward {fixed(breakdown.total)}", width, p.text)
        lines += self._notes(record, width)
        if record.advantage is None:
            if record.unknown:
                lines += self._unknown(record, "advantage", "advantage", width)
                lines += wrapped(p, self.recomputed, width, p.faint)
            return lines
        step = record.step_advantages[self.step] if self.step < len(record.step_advantages) else None
        value = fixed(record.advantage, signed=True)
        name = "advantage " if len("advantage ") + len(value) <= width else "A "
        line = Line(p).add(name, p.muted).whole(value, p.sign(record.advantage), width - len(name))
        if step is not None:
            line.whole(f"  this step {fixed(step, signed=True)}", p.text, width - line.width)
        lines.append(line)
        for text in equation(self.formula, self.step, step):
            lines += wrapped(p, text, width, p.faint)
        return lines

    def _unknown(self, record: TrajectoryRecord, what: str, name: str, width: int) -> list[Line]:
        p = self.palette
        why = record.unknown.get(what)
        text = f"{name}: not recorded" + (f" ({why})" if why else "")
        return wrapped(p, text, width, p.faint)

    def _notes(self, record: TrajectoryRecord, width: int) -> list[Line]:
        """Explain arithmetic that is incomplete or differs from the recorded total."""
        p = self.palette
        lines = [line for key in ("sum", "turns") for line in wrapped(p, record.unknown.get(key, ""), width, p.warn)]
        for what, name in (("weight", "weights"), ("missing", "components"), ("components", "components")):
            if what in record.unknown:
                lines += self._unknown(record, what, name, width)
        return lines


def adding_up(terms: Sequence[float | None], total: float | None) -> tuple[Sequence[float | None], int]:
    """Round terms so that they add up to the rounded total; return them and the decimals (two to four). If that is not
    enough, adjust the last digit of the terms with the largest rounding error."""
    known = [t for t in terms if t is not None]
    if len(known) < len(terms) or total is None or not all(map(math.isfinite, (*known, total))):
        return terms, 2
    if abs(sum(known) - total) > _INEXACT * max(1.0, abs(total)):
        return terms, 2  # something else is in the total
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
    """Format `Σ steps = 0.05 − 0.02 = 0.03` with as many decimals as the sum needs."""
    rounded, places = adding_up(terms, total)
    shown = [t or 0.0 for t in rounded]
    added = "".join(
        (f" {MINUS} " if t < 0 else " + ") + fixed(abs(t), places) if i else fixed(t, places)
        for i, t in enumerate(shown)
    )
    return f"Σ steps = {added} = {fixed(total, places)}"
