"""Panels of the dashboard: the components of the reward, the shares of actions, and the policy.

A row of the component table shows the sum of the component's raw values over a rollout, the sum of its normalised
values, its weight, and its contribution to the rollout's reward. Each is a mean over the rollouts of the last step, so
the last column adds up to the total below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ....configs import metric_names as metric
from ....engine.runs.health.headline import RATE_WINDOW, Headline
from ....engine.runs.types import Event
from ...format import MINUS, bar, fitted, fixed, number, percent, trend, whole_percents, within
from ...text import distinct_names, longest, wrap
from ..live_data import Kind, Reading
from .live_panels import LivePanel
from .pane import Line

_ORDER = ("task", "environment", "curiosity", "coherence", "penalty")
_PLACES = 3
"""Decimals of added numbers. With fewer, the rounded numbers visibly miss their rounded sum."""
_NAME = 11
"""Minimum width of a long name, in cells."""
_TREND = 5
"""Minimum width of a sparkline, in cells."""


class ComponentTable(LivePanel):
    """One row per component, then the total, from the `rewards/...` metrics of the last step."""

    name = "components"
    title = "Reward of a rollout"

    def names(self) -> list[str]:
        """Return the recorded components: user reward functions by name, then built-in ones."""
        found = [metric.COMPONENT_RAW.part(k) for k in self.latest if k in metric.COMPONENT_RAW]
        return sorted(found, key=lambda n: _ORDER.index(n) if n in _ORDER else -1)

    def values(self, name: str) -> dict[str, float | None]:
        raw, normalised, adds = metric.COMPONENT_RAW_SUM, metric.COMPONENT_NORMALIZED_SUM, metric.COMPONENT_SUM
        if self.reading.info.mode in ("dump", "recorded"):  # their components are per rollout (docs/recording.md)
            raw, normalised, adds = metric.COMPONENT_RAW, metric.COMPONENT_NORMALIZED, metric.COMPONENT_CONTRIBUTION
        metrics = {"raw": raw, "norm": normalised, "×w": metric.COMPONENT_WEIGHT, "adds": adds}
        return {title: self.latest.get(metric_of(name)) for title, metric_of in metrics.items()}

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        names = self.names()
        if not names:
            return [Line(p), *self.nothing("components appear after the first step", width)]
        columns = [("raw", 8), ("norm", 8), ("×w", 7), ("adds", 8)]
        name_width = min(longest(names, len("component")), max(_NAME, width - sum(w for _, w in columns)))
        while columns and name_width + sum(w for _, w in columns) > width:
            if name_width > 6:
                name_width -= 1
            else:
                columns.pop(0)
        name_width = min(name_width, width)
        shown = dict(zip(names, distinct_names(names, name_width), strict=True))
        left = width - name_width - sum(w for _, w in columns)
        step = 16 if left >= 16 + _TREND + 2 else 0
        cells = min(24, left - step - 2)
        head = Line(p).add("component", p.muted, cells=name_width)
        for title, size in columns:
            head.add(title, p.muted, cells=size, align=">")
        if step:
            head.add("per step ± std", p.muted, cells=step, align=">")
        if cells >= _TREND:
            head.gap(2).add("trend", p.muted, cells=cells)
        lines = [head]
        for name in names:
            values = self.values(name)
            line = Line(p).add(shown[name], p.text, cells=name_width, click=("component", name))
            for title, size in columns:
                line.add(*self._cell(title, values, size - 1), cells=size, align=">")
            if step:
                line.add(self._of_a_step(name, step - 1), p.muted, cells=step, align=">")
            lines.append(self._with_trend(line, metric.COMPONENT_SUM(name), cells))
        total, std = self.latest.get(metric.REWARD_MEAN), self.latest.get(metric.REWARD_STD)
        if total is not None and columns:
            body = name_width + sum(w for _, w in columns)
            line = Line(p).add("Σ total", p.strong, cells=body - columns[-1][1])
            line.add(fitted(total, columns[-1][1] - 1, places=_PLACES), p.strong, cells=columns[-1][1], align=">")
            if step:
                line.add("" if std is None else f"± {number(std)}", p.muted, cells=step, align=">")
            if height > len(lines) + 1:
                lines.append(Line(p).add("─" * body, p.border))
            lines.append(self._with_trend(line, metric.REWARD_MEAN, cells))
        penalty = self.latest.get(metric.COMPONENT_RAW("penalty"))
        note = Line(p).add(f"{MINUS} ", p.warn).add("the stepper shows the reasons of penalties", p.faint)
        if penalty is not None and penalty < -1e-9 and height > len(lines) and note.width <= width:
            lines.append(note)
        return lines

    def _cell(self, title: str, values: Mapping[str, float | None], cells: int):
        p, value = self.palette, values[title]
        if title == "norm" and value is not None and values["raw"] is not None:
            if abs(value - values["raw"]) <= 1e-9 * max(1.0, abs(value)):
                return "–", p.faint
            return fitted(value, cells, signed=True), p.text
        if title == "adds":
            return fitted(value, cells, places=_PLACES), p.strong if value else p.muted
        return fitted(value, cells), p.muted if title == "×w" else p.text

    def _of_a_step(self, name: str, cells: int) -> str:
        mean, std = self.latest.get(metric.COMPONENT_RAW(name)), self.latest.get(metric.COMPONENT_RAW_STD(name))
        if mean is None:
            return "–"
        if std is None:
            return fitted(mean, cells)
        room = (cells - 3) // 2
        left, right = fitted(mean, room), fitted(std, room)
        return f"{left} ± {right}" if left and right else left

    def _with_trend(self, line: Line, name: str, cells: int) -> Line:
        if cells >= _TREND:
            points = self.trends.get(name) or self.trends.get(name.replace("/per_trajectory/", "/raw/"), ())
            line.gap(2).add(trend(points, cells), self.palette.accent, cells=cells)
        return line


_CHANGE = 0.02
"""The smallest change of a share that gets an arrow."""


class ActionBars(LivePanel):
    """Shares of actions from `behavior/action_distribution/<ACTION>`. The percents add up to 100."""

    title = "Actions"

    name = "actions"

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        latest = {metric.ACTION_SHARE.part(k): v for k, v in self.latest.items() if k in metric.ACTION_SHARE}
        if not latest:
            return self.nothing("no actions yet", width)
        names = sorted(latest, key=lambda n: -latest[n])
        shares = dict(zip(names, whole_percents([latest[n] for n in names]), strict=True))
        name_width = min(longest(names, 1), max(8, width // 2 - 4, min(24, width - 17)))
        shown = dict(zip(names, distinct_names(names, min(name_width, width)), strict=True))
        room = width - name_width - 9
        cells = max(min(20, room - 12), min(60, room - 44)) if room >= 24 else 0
        room -= cells + (1 if cells else 0)
        lines = []
        for index, name in enumerate(names):
            style = p.series[index % len(p.series)]
            line = Line(p).add(shown[name], p.text, cells=min(name_width, width), click=("action", name))
            if room >= 3:
                line.gap().add(bar(latest[name], room), style, cells=room)
            line.offer(Line(p).add(f" {shares[name]}", p.text, cells=6, align=">").gap(), width)
            points = self.trends.get(metric.ACTION_SHARE(name), ())
            change = _change([value for _, value in points if math.isfinite(value)])
            arrow, tone = ("▲", p.text) if change > _CHANGE else ("▼", p.text) if change < -_CHANGE else (" ", p.faint)
            line.offer(Line(p).add(arrow, tone), width)
            if cells:
                line.offer(Line(p).gap().add(trend(points, cells), style, cells=cells), width)
            lines.append(line)
        return lines


def _change(values: Sequence[float]) -> float:
    quarter = len(values) // 4
    return (sum(values[-quarter:]) - sum(values[:quarter])) / quarter if quarter else 0.0


Row = tuple[str, str, Callable[[float | None], str]]


def _integer(value: float | None) -> str:
    return number(int(value) if value is not None and math.isfinite(value) else value)


ROWS: Mapping[Kind, tuple[Row, ...]] = {
    "rft": (
        (metric.SUCCESS_GREEDY, "held-out", percent),
        (metric.STALENESS, "staleness", number),
        (metric.LOGPROB_MISMATCH, "mismatch", number),
        (metric.SAMPLER_KL, "sampler KL", number),
        (metric.ENTROPY, "entropy", number),
        (metric.GRAD_NORM, "grad norm", number),
        (metric.CLIP_FRACTION, "clipped", percent),
        (metric.LEARNING_RATE, "lr", number),
        (metric.LOSS, "loss", number),
        (metric.FILTERING_RATE, "filtered groups", percent),
        (metric.REPLAY_SHARE, "replayed", percent),
        (metric.TURNS, "turns", number),
    ),
    "sft": (
        (metric.LOSS, "loss", number),
        (metric.TOKEN_ACCURACY, "token accuracy", percent),
        (metric.ENTROPY, "entropy", number),
        (metric.GRAD_NORM, "grad norm", number),
        (metric.LEARNING_RATE, "lr", number),
        (metric.SUCCESS_GREEDY, "held-out, greedy", percent),
        (metric.SUCCESS_SAMPLED, "held-out, sampled", percent),
    ),
    "online": (
        (metric.GATE_RATE, "gate open", percent),
        (metric.FLIP_RATE, "labels flipped", percent),
        (metric.UPDATES, "updates", _integer),
        (metric.REJECTED, "taken back", percent),
        (metric.VALIDATION_DELTA, "Δ validation", number),
        (metric.LOSS, "loss", number),
        (metric.GRAD_NORM, "grad norm", number),
        (metric.LEARNING_RATE, "lr", number),
        (metric.CLIP_FRACTION, "clipped", percent),
    ),
}
TITLES: Mapping[Kind, str] = {"rft": "Policy", "sft": "Learning", "online": f"Learning ─ rates of {RATE_WINDOW}"}

WORTH_SAYING = 0.1
"""Share of a step spent waiting from which one side counts as a bottleneck."""


class PolicyPanel(LivePanel):
    """KL, beta and the health of updates, from `kl/*`, `online/*`, `train/*` and `beta` events."""

    name = "learning"

    def put(self, reading: Reading) -> None:
        self.title = TITLES[reading.kind]
        super().put(reading)

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        kind = self.reading.kind
        lines = [] if kind == "sft" else [*self._kl(width), *self._beta(width)]
        if slower := bottleneck(self.latest):
            lines += [Line(p).add(text, p.muted, cells=width) for text in wrap(slower, width, 400)[:2]]
        for name, title, show in ROWS[kind]:
            value = self.latest.get(name)
            if value is None:
                continue
            text = show(value) + (
                within(Headline(self.latest).interval, percent) if name == metric.SUCCESS_GREEDY else ""
            )
            change = Line(p).add(text, p.text)
            line = Line(p)
            if len(title) + 1 + change.width <= width:
                line.add(f"{title} ", p.muted)
            if line.offer(change, width):
                lines.append(self.with_trend(line, name, width))
        return lines or self.nothing(f"appears after the first {'step' if kind == 'sft' else 'update'}", width)

    def _kl(self, width: int) -> list[Line]:
        p, get = self.palette, self.latest.get
        kl, target, tolerance = get(metric.KL_MEAN), get(metric.KL_TARGET), get(metric.KL_TOLERANCE)
        if kl is None:
            if get(metric.BETA) == 0.0:
                return [Line(p).add("KL off: beta is 0", p.faint, cells=min(width, 17))]
            return []
        line = Line(p).add("KL ", p.muted, cells=min(width, 3))
        line.offer(Line(p).add(number(kl), p.strong), width)
        if target is not None:
            line.offer(Line(p).add(" → ", p.faint).add(number(target), p.text), width)
        if target is not None and tolerance is not None:
            line.offer(Line(p).add(f" ± {number(tolerance)}", p.muted), width)
            verdict = "high" if kl > target + tolerance else "low" if kl < target - tolerance else "on target"
            sign = {"high": "▲", "low": "▼", "on target": "✓"}[verdict]
            tone = p.good if verdict == "on target" else p.warn
            if not line.offer(Line(p).add(f" {sign} {verdict}", tone), width):
                line.offer(Line(p).add(f" {sign}", tone), width)
        return [self.with_trend(line, metric.KL_MEAN, width)]

    def _beta(self, width: int) -> list[Line]:
        p, beta = self.palette, self.latest.get(metric.BETA)
        line = Line(p).add("β  ", p.muted)
        if beta is None or not line.offer(Line(p).add(number(beta), p.strong), width):
            return []
        lines = [self.with_trend(line, metric.BETA, width)]
        if self.reading.betas:
            reason = wrap(self._reason(self.reading.betas[-1]), max(8, width - 3), 400)
            lines += [Line(p).gap(3).add(text, p.muted, cells=max(1, width - 3)) for text in reason[:2]]
        return lines

    @staticmethod
    def _reason(event: Event) -> str:
        data = event.data
        before, after = data.get("from"), data.get("to")
        change = ""
        if isinstance(before, (int, float)) and isinstance(after, (int, float)) and before and after:
            ratio = after / before
            change = f"×{fixed(ratio, 2)}" if ratio >= 1 else f"÷{fixed(1 / ratio, 2)}"
        reason = data.get("reason") or event.message
        return f"{change} at {event.step}: {reason}".strip()


def bottleneck(latest: Mapping[str, float]) -> str:
    """Name the slower side in one sentence. Empty if no servers make the rollouts."""
    idle, wait, step = (latest.get(name) for name in (metric.TRAINER_IDLE, metric.ROLLOUTS_WAIT, metric.STEP_SECONDS))
    if idle is None or wait is None or not step:
        return ""
    if idle >= wait and idle > WORTH_SAYING * step:
        share = min(idle / step, 1.0)
        return f"the trainer waits {share:.0%} of a step for rollouts: add servers or raise max_staleness"
    if wait > WORTH_SAYING * step:
        return f"rollouts were ready {wait:.1f} s early: the trainer is slower"
    return "rollouts and trainer are equally fast"
