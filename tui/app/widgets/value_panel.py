"""The value of a step: the rewards of continuations before and after it, with intervals."""

from __future__ import annotations

from ....configs.sections import EvaluationConfig
from ....engine.evaluation.branch import Branch, read_branch
from ....engine.evaluation.statistics import Interval
from ....engine.launch.settings import read_config
from ....engine.runs.control.status import look
from ....engine.runs.read.reader import RunReader
from ....engine.runs.types import RunInfo
from ...format import fixed
from .pane import Line, Pane, wrapped

_TEXT = 160
"""Maximum number of characters shown of an observation that differs."""


class ValuePanel(Pane):
    """The rewards before and after the step, and their difference next to the advantage in training."""

    name = "value"
    title = "value of the step"
    branch: Branch | None = None
    info: RunInfo | None = None
    _spec: EvaluationConfig | None = None

    @property
    def ended(self) -> bool:
        return self.info is not None and not self.info.active

    def read(self, reader: RunReader) -> tuple[Branch | None, RunInfo]:
        """Return the continuations so far, and the state of the process that makes them."""
        if self._spec is None:
            self._spec = read_config(reader.run_dir).evaluation
        info = look(reader.run_dir)  # look before reading the rows, which are complete once the run has ended
        branch = read_branch(reader, self._spec)
        return (branch if branch.before.rows or branch.after.rows else None), info

    def put(self, branch: Branch | None, info: RunInfo) -> bool:
        """Show a state. Returns whether it changed."""
        if self.info is not None and (branch, info.status) == (self.branch, self.info.status):
            return False
        self.branch, self.info = branch, info
        self.changed()
        return True

    def build(self, width: int, height: int) -> list[Line]:
        p, branch, info = self.palette, self.branch, self.info
        if info is not None and info.error:
            return wrapped(p, info.error, width, p.bad)
        if branch is None:
            return [Line(p, "loading the model and the data…", p.faint)]
        source, spec = branch.spec.branch, branch.spec
        line = Line(p).add(f"step {source.step} of rollout {source.rollout}", p.strong)
        if source.token is not None:
            line.add(f" after token {source.token}", p.strong)
        line.add(f" · policy {spec.subject} ", p.text)
        line.whole(f"(step {spec.step}; the rollout is from step {branch.version})", p.muted, width - line.width)
        lines = [line]
        for name, side in (("before", branch.before), ("after", branch.after)):
            samples = f"{side.reward.n}/{spec.samples}"
            line = Line(p).add(name, p.muted, cells=9).add(samples, p.text, cells=7).add("reward ", p.muted)
            line.extend(_interval(self, side.reward))
            if side.success is not None:
                line.whole("   success ", p.muted, width - line.width)
                line.offer(_interval(self, side.success), width)
            lines.append(line)
        line = Line(p).add("value", p.muted, cells=23).extend(_interval(self, branch.worth, signed=True))
        if branch.advantage is not None:
            comparison = Line(p).add("   advantage in training ", p.muted)
            line.offer(comparison.add(fixed(branch.advantage, signed=True), p.sign(branch.advantage)), width)
        lines.append(line)
        if branch.replay is not None:
            turn, count = branch.replay["turn"], branch.before.differing + branch.after.differing
            where = f"the observation of turn {turn}" if turn else "the prompt"
            total = len(branch.before.rows) + len(branch.after.rows)
            lines += wrapped(p, f"{count} of {total} replays differ from the record, first in {where}", width, p.warn)
            for name in ("recorded", "now"):
                text = " ".join(str(branch.replay[name]).split())[:_TEXT]
                lines += wrapped(p, f"{name}: {text}", width, p.muted)
        return lines


def _interval(pane: ValuePanel, i: Interval, signed: bool = False) -> Line:
    p, line = pane.palette, Line(pane.palette)
    if i.n == 0:
        return line.add("–", p.faint)
    line.add(fixed(i.estimate, signed=signed), p.sign(i.estimate) if signed else p.strong)
    return line.add(f" ({fixed(i.low, signed=signed)} to {fixed(i.high, signed=signed)})", p.muted)
