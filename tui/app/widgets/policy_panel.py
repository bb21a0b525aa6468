"""How far the policy moved, and what holds it: KL against its target, beta with the reason for its last change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....engine.runs.types import Event
from ...format import fixed, number, percent, sparkline
from .line import Line
from .pane import Pane


class PolicyPanel(Pane):
    """Reads `kl/*`, `online/*`, `train/*` and the events of kind `beta`."""

    title = "Policy"

    def __init__(self, name: str = "policy") -> None:
        super().__init__(name)
        self.latest: Mapping[str, float] = {}
        self.trends: Mapping[str, Sequence[float]] = {}
        self.betas: Sequence[Event] = ()

    def put(self, latest: Mapping[str, float], trends: Mapping[str, Sequence[float]], betas: Sequence[Event]) -> None:
        """The last values, recent history, and the changes of beta, newest last."""
        self.latest, self.trends, self.betas = latest, trends, betas
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        """KL, beta, then the health of the update."""
        p = self.palette
        lines: list[Line] = []
        get = self.latest.get
        kl = get("kl/mean", get("online/mean_kl"))
        if kl is not None:
            line = Line(p).add("KL ", p.muted).add(number(kl), p.strong)
            target, tolerance = get("kl/target"), get("kl/tolerance")
            if target is not None:
                line.add(" → ", p.faint).add(number(target), p.text)
                if tolerance is not None:
                    line.add(f" ± {number(tolerance)}", p.muted)
                    verdict = "high" if kl > target + tolerance else "low" if kl < target - tolerance else "on target"
                    sign = {"high": "▲ ", "low": "▼ ", "on target": "✓ "}[verdict]
                    tone = p.good if verdict == "on target" else p.warn
                    room = width - line.width - 1
                    line.gap().add(sign + verdict if len(verdict) + 2 <= room else sign, tone)
            line.right(
                self._spark("kl/mean" if "kl/mean" in self.latest else "online/mean_kl", width - line.width), width
            )
            lines.append(line)
        beta = get("kl/beta", get("online/current_beta"))
        if beta is not None:
            line = Line(p).add("β  ", p.muted).add(number(beta), p.strong)
            line.right(
                self._spark("kl/beta" if "kl/beta" in self.latest else "online/current_beta", width - line.width), width
            )
            lines.append(line)
            if self.betas:
                last = self.betas[-1]
                lines.append(Line(p).gap(3).add(self._reason(last), p.muted, cells=max(1, width - 3)))
        for name, title, show in (
            ("train/entropy", "entropy", number),
            ("train/grad_norm", "grad norm", number),
            ("train/clip_fraction", "clipped", percent),
            ("train/learning_rate", "lr", number),
            ("train/loss", "loss", number),
            ("grpo/filtering_rate", "filtered groups", percent),
            ("grpo/replay_share", "replayed", percent),
            ("turns/mean", "turns", number),
            ("online/gate_rate", "gate open", percent),
            ("online/flip_rate", "labels flipped", percent),
            ("online/delta_validation", "Δ validation", number),
        ):
            value = get(name)
            if value is not None:
                line = Line(p).add(f"{title} ", p.muted).add(show(value), p.text)
                line.right(self._spark(name, width - line.width), width)
                lines.append(line)
        return lines or [Line(p).add("KL and beta appear with the first update", p.faint, cells=width, align="^")]

    def _spark(self, name: str, room: int) -> Line:
        values = list(self.trends.get(name, ()))
        return Line(self.palette).add(sparkline(values, max(0, min(16, room - 2))), self.palette.accent)

    @staticmethod
    def _reason(event: Event) -> str:
        data = event.data
        before, after = data.get("from"), data.get("to")
        change = ""
        if isinstance(before, (int, float)) and isinstance(after, (int, float)) and before:
            ratio = after / before
            change = f"×{fixed(ratio, 2)}" if ratio >= 1 else f"÷{fixed(1 / ratio, 2)}"
        reason = data.get("reason") or event.message
        return f"{change} at {event.step}: {reason}".strip()
