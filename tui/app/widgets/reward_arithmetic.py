"""One step's reward as arithmetic, then the trajectory's, then the advantage: exactly the numbers of the record."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.runs.types import StepReward, TrajectoryRecord, TrajectoryRow
from ...format import MINUS, fixed
from ...text import wrap
from .group_panel import spread
from .line import Line
from .pane import Pane
from .penalty import penalty_lines


class RewardArithmetic(Pane):
    """Component, raw, normalised, × weight, = contribution; Σ; and each penalty of the step explained."""

    title = "reward of this step"

    def __init__(self, name: str = "reward") -> None:
        super().__init__(name)
        self.record: TrajectoryRecord | None = None
        self.step = 0
        self.rows: Sequence[TrajectoryRow] = ()

    def put(self, record: TrajectoryRecord | None, step: int, rows: Sequence[TrajectoryRow]) -> None:
        """The open trajectory, which of its steps, and the rows of its group."""
        self.record, self.step, self.rows = record, step, rows
        self.changed(keep_scroll=False)

    def _reward(self) -> StepReward | None:
        record = self.record
        if record is None or record.breakdown is None or not record.trajectory.steps:
            return None
        index = record.trajectory.steps[min(self.step, len(record.trajectory.steps) - 1)].index
        return next((s for s in record.breakdown.steps if s.step == index), None)

    def build(self, width: int, height: int) -> list[Line]:
        """The arithmetic, penalties, and how the steps add up."""
        p = self.palette
        record = self.record
        if record is None:
            return []
        reward = self._reward()
        if reward is None and record.unknown:
            return self._not_recorded(record, width)
        if reward is None:
            text = "No reward was recorded for this step." if record.trajectory.steps else "The agent took no step."
            if record.split == "eval":
                text = "A rollout on held-out tasks: judged by its answer alone, and not trained on."
            return [Line(p).add(t, p.faint) for t in wrap(text, width)]
        lines = self._components(reward, width)
        if reward.penalties:
            lines.append(Line(p))
            for penalty in reward.penalties:
                lines += penalty_lines(p, penalty, width)
        elif not record.unknown:
            lines.append(Line(p).add("✓ no penalty in this step", p.good))
        lines.append(Line(p))
        lines += self._trajectory(record, width)
        return lines

    def _components(self, reward: StepReward, width: int) -> list[Line]:
        p = self.palette
        sizes = (8, 8, 7, 8) if width >= 42 else (6, 6, 5, 6)
        name_width = max(4, min(16, width - sum(sizes)))
        head = Line(p).add("component", p.muted, cells=name_width)
        for title, cells in zip(("raw", "norm", "×w", "="), sizes, strict=True):
            head.add(title, p.muted, cells=cells, align=">")
        lines = [head]
        for name, value in reward.components.items():
            normalised = value.normalized != value.raw
            line = Line(p).add(name, p.text, cells=name_width)
            line.add(fixed(value.raw), p.text, cells=sizes[0], align=">")
            shown, style = (fixed(value.normalized), p.text) if normalised else ("–", p.faint)
            line.add(shown, style, cells=sizes[1], align=">")
            line.add(fixed(value.weight), p.muted, cells=sizes[2], align=">")
            line.add(fixed(value.contribution), p.sign(value.contribution), cells=sizes[3], align=">")
            lines.append(line)
        whole = name_width + sum(sizes)
        lines.append(Line(p).add("─" * whole, p.border))
        total = Line(p).add("Σ step", p.strong, cells=whole - sizes[3])
        lines.append(total.add(fixed(reward.total), p.strong, cells=sizes[3], align=">"))
        return lines

    def _trajectory(self, record: TrajectoryRecord, width: int) -> list[Line]:
        p = self.palette
        breakdown = record.breakdown
        assert breakdown is not None
        totals = [s.total for s in breakdown.steps]
        known = [t for t in totals if t is not None]
        lines = []
        if breakdown.total is None:
            lines += self._unknown(record, "reward", "Σ the total", width)
        elif (len(known) == len(totals) and len(totals) > 1) or not record.unknown:
            terms = "".join(
                (f" {MINUS} " if t < 0 else " + ") + fixed(abs(t)) if i else fixed(t) for i, t in enumerate(known)
            )
            lines += [Line(p).add(t, p.text) for t in wrap(f"Σ steps = {terms} = {fixed(breakdown.total)}", width)]
        else:
            lines += [Line(p).add(t, p.text) for t in wrap(f"stated reward {fixed(breakdown.total)}", width)]
        lines += self._notes(record, width)
        if record.advantage is not None:
            line = (
                Line(p).add("advantage ", p.muted).add(fixed(record.advantage, signed=True), p.sign(record.advantage))
            )
            if self.step < len(record.step_advantages):
                line.add("  this step ", p.faint).add(fixed(record.step_advantages[self.step], signed=True), p.text)
            lines.append(line)
            lines += [Line(p).add(t, p.faint) for t in self._how(record, width)]
        elif record.unknown:
            lines += self._unknown(record, "advantage", "advantage", width)
            lines += [Line(p).add(t, p.faint) for t in self._recomputed(record, width)]
        return lines

    def _not_recorded(self, record: TrajectoryRecord, width: int) -> list[Line]:
        """What another framework's record has no number for."""
        p = self.palette
        if record.breakdown is not None:
            text = "The reward is of the whole rollout: it stands at its last step."
            lines = [Line(p).add(t, p.faint) for t in wrap(text, width)] + [Line(p)]
            return lines + self._trajectory(record, width)
        lines = self._unknown(record, "reward", "reward", width)
        return lines + self._unknown(record, "advantage", "advantage", width)

    def _unknown(self, record: TrajectoryRecord, what: str, name: str, width: int) -> list[Line]:
        p = self.palette
        why = record.unknown.get(what)
        text = f"{name}: not recorded" + (f" ({why})" if why else "")
        return [Line(p).add(t, p.faint) for t in wrap(text, width)]

    def _notes(self, record: TrajectoryRecord, width: int) -> list[Line]:
        """Where the arithmetic is not known to the end, or does not give what was stated."""
        p = self.palette
        lines = [Line(p).add(t, p.warn) for k in ("sum", "turns") for t in wrap(record.unknown.get(k, ""), width) if t]
        for what, name in (("weight", "weights"), ("missing", "components"), ("components", "components")):
            if what in record.unknown:
                lines += self._unknown(record, what, name, width)
        return lines

    def _recomputed(self, record: TrajectoryRecord, width: int) -> list[str]:
        """The advantage that GRPO would have given, where the group's rewards are known; said to be recomputed."""
        stats = spread(self.rows)
        total = record.breakdown.total if record.breakdown is not None else None
        if stats is None or total is None or any(r.reward is None for r in self.rows) or len(self.rows) < 2:
            return []
        mean, std = stats
        sample = std * (len(self.rows) / (len(self.rows) - 1)) ** 0.5
        if sample < 1e-9:
            return wrap("recomputed: 0, all rewards of the group are equal", width)
        value = (total - mean) / (sample + 1e-4)
        text = f"recomputed, GRPO's: ({fixed(total)} {MINUS} {fixed(mean)}) ÷ {fixed(sample)} = "
        return wrap(text + fixed(value, signed=True), width)

    def _how(self, record: TrajectoryRecord, width: int) -> list[str]:
        """The advantage from the group's rewards, when that is how it came about."""
        stats = spread(self.rows)
        total = record.breakdown.total if record.breakdown is not None else None
        if stats is None or total is None or record.advantage is None or len(self.rows) < 2:
            return []
        mean, std = stats
        sample = std * (len(self.rows) / (len(self.rows) - 1)) ** 0.5
        centred = total - mean
        minus = f"{fixed(total)} {MINUS} {fixed(mean)}" if mean >= 0 else f"{fixed(total)} + {fixed(-mean)}"
        close = 0.02 * max(1.0, abs(record.advantage)) + 0.005
        if std < 1e-9 and abs(record.advantage) < 1e-6:
            return wrap("All rewards of the group are equal: no advantage, no gradient.", width)
        if abs(centred - record.advantage) < close:
            return wrap(f"= {minus} (the group's mean)", width)
        for value in (sample, std):
            if value > 1e-9 and abs(centred / (value + 1e-4) - record.advantage) < close:
                return wrap(f"= ({minus}) ÷ {fixed(value)}  (the group's mean and std)", width)
        return wrap(f"group mean {fixed(mean)} ± {fixed(std)}", width)
