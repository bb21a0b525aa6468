"""The run under the cursor of the list: its facts, its end, and the next command."""

from __future__ import annotations

from ....configs import metric_names as metric
from ....engine.runs.health.headline import RATE_WINDOW, Headline
from ....engine.runs.types import RunInfo
from ...format import ago, duration, percent, within
from ...status import status_sign, status_style
from ...text import wrap
from .line import Line, wrapped
from .pane import Pane

_SUCCESS = (
    (metric.SUCCESS_GREEDY, "greedy", "of held-out tasks"),
    (metric.SUCCESS_SAMPLED, "sampled", "of held-out tasks"),
    (metric.ONLINE_SUCCESS, "success", f"of the last {RATE_WINDOW} requests"),
)


class RunCard(Pane):
    """Facts and results of one run."""

    title = "run"

    def __init__(self) -> None:
        super().__init__("card")
        self.info: RunInfo | None = None
        self.headline = Headline()
        self.over_seeds = ""

    def put(self, info: RunInfo | None, headline: Headline, over_seeds: str = "") -> None:
        """over_seeds: the mean over the seeds of the run's configuration, as text."""
        if (info, headline, over_seeds) != (self.info, self.headline, self.over_seeds):
            self.info, self.headline, self.over_seeds = info, headline, over_seeds
            self.changed(keep_scroll=False)

    def build(self, width: int, height: int) -> list[Line]:
        p, info = self.palette, self.info
        if info is None:
            return []
        now = self.app.clock()
        if info.mode == "dump":
            line = Line(p).add(f"opened {ago(now - info.created)} ago", p.muted)
        else:
            line = Line(p).add(f"{status_sign(info.status)} {info.status}", status_style(p, info.status))
            if info.created:
                line.offer(Line(p).add(f"  after {duration((info.ended or now) - info.created)}", p.muted), width)
            if info.ended:
                line.offer(Line(p).add(f", {ago(now - info.ended)} ago", p.muted), width)
        lines = [line]
        if info.error:
            lines += wrapped(p, info.error, width, p.bad, 600)
        facts = (
            ("name", info.name),
            ("mode", info.mode),
            ("task", info.environment),
            ("model", info.model),
            ("folder", info.facts.get("dump") or info.path),
        )
        for name, value in facts:
            if value not in ("", None):
                for i, text in enumerate(wrap(str(value), max(4, width - 9), 400)):
                    lines.append(Line(p).add(name if i == 0 else "", p.faint, cells=8).gap().add(text, p.text))
        interval = self.headline.interval
        for key, title, of in _SUCCESS:
            value = self.headline.values.get(key)
            if value is not None:
                text = percent(value) + within(interval, percent)
                interval = None  # of the first one
                line = Line(p).add(title, p.faint, cells=8).gap().add(text, p.strong)
                line.offer(Line(p).add(f" {of}", p.muted), width)
                lines.append(line)
        lines += wrapped(p, self.over_seeds, width, p.strong) if self.over_seeds else []
        if info.status in ("crashed", "stopped"):
            line = Line(p).add(info.resume_command, p.accent)
            line.offer(Line(p).add("  goes on", p.muted), width)
            lines += [Line(p), line]
        return [line for line in lines if line.width <= width]
