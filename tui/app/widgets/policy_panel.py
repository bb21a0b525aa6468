"""How the policy changes, and what holds it: KL against its target, beta with the reason for its last change, and the
health of the update. Each kind of run has rows of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ....configs import metric_names as metric
from ....engine.runs.health.headline import INTERVAL, RATE_WINDOW
from ....engine.runs.types import Event
from ...format import fixed, number, percent, within
from ...text import wrap
from ..live_data import Kind, Reading
from .line import Line
from .live_panels import LivePanel

Row = tuple[str, str, Callable[[float | None], str]]


def _whole(value: float | None) -> str:
    return number(int(value) if value is not None and math.isfinite(value) else value)


ROWS: Mapping[Kind, tuple[Row, ...]] = {
    "rft": (
        (metric.SUCCESS_GREEDY, "held-out", percent),
        (metric.STALENESS, "steps behind", number),
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
        (metric.TOKEN_ACCURACY, "tokens right", percent),
        (metric.ENTROPY, "entropy", number),
        (metric.GRAD_NORM, "grad norm", number),
        (metric.LEARNING_RATE, "lr", number),
        (metric.SUCCESS_GREEDY, "held-out, greedy", percent),
        (metric.SUCCESS_SAMPLED, "held-out, sampled", percent),
    ),
    "online": (
        (metric.GATE_RATE, "gate open", percent),
        (metric.FLIP_RATE, "labels flipped", percent),
        (metric.UPDATES, "updates", _whole),
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
"""Share of a step that somebody has to wait before it is a bottleneck."""


class PolicyPanel(LivePanel):
    """KL, beta and the health of updates, from `kl/*`, `online/*`, `train/*` and `beta` events."""

    box = "learning"

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
            text = show(value) + (within(self._interval(), percent) if name == metric.SUCCESS_GREEDY else "")
            said = Line(p).add(text, p.text)
            line = Line(p)
            if len(title) + 1 + said.width <= width:
                line.add(f"{title} ", p.muted)
            if line.offer(said, width):
                lines.append(self.with_trend(line, name, width))
        if lines:
            return lines
        when = {"rft": "with the first update", "sft": "with the first step",
                "online": "with the first update"}[kind]  # fmt: skip
        return [Line(p).add(self.coming(when), p.faint, cells=width, align="^")]

    def _interval(self) -> tuple[float, float] | None:
        """Return the 95 % interval of greedy success on held-out tasks."""
        low, high = (self.latest.get(name) for name in INTERVAL)
        return None if low is None or high is None else (low, high)

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
    """Name the slower side in one sentence; empty if rollouts are not made on servers."""
    idle, wait, step = (latest.get(name) for name in (metric.TRAINER_IDLE, metric.ROLLOUTS_WAIT, metric.STEP_SECONDS))
    if idle is None or wait is None or not step:
        return ""
    if idle >= wait and idle > WORTH_SAYING * step:
        share = min(idle / step, 1.0)
        return f"the trainer waits {share:.0%} of a step for rollouts: more servers, or a larger max_staleness"
    if wait > WORTH_SAYING * step:
        return f"rollouts were ready {wait:.1f} s early: the trainer is the slower side"
    return "rollouts and trainer keep pace"
