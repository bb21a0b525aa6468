"""Two rollouts in two columns, aligned by their calls, with the first difference on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest

from rich.style import Style

from ....engine.runs.types import Step, TrajectoryRecord
from ...advantage import equation
from ...format import fixed, mark
from ...text import width as cells_of
from ...text import wrap
from ..calls import calls_of, said, shown
from ..comparison import Pair, Pieces, RolloutComparison, rows
from ..theme import Palette
from .line import Line, wrapped
from .text_layout import Flow, FlowPane, FlowPart

_FIELD = 6_000
"""Maximum number of characters of a field that are shown."""
_ONE_SIDE = 240
"""Maximum number of characters shown of a thought or result that only one side has."""
NAMES = ("thought", "call", "answered", "reward")


class DiffPane(FlowPane):
    """Both rollouts in two columns."""

    name = "diff"
    compared: RolloutComparison | None = None
    note = ""
    at = 0
    """The index of the marked pair."""
    _heads: Mapping[int, FlowPart] = {}
    """The parts of the flow for the pairs that differ."""
    _width = 0

    def put(self, compared: RolloutComparison | None, note: str = "") -> None:
        self.compared, self.note = compared, note
        self.at = next(iter(self.differing()), 0)
        self.changed(keep_scroll=False)
        if self.shown:
            self.on_placed()

    def differing(self) -> Sequence[int]:
        return self.compared.differing if self.compared is not None else ()

    def move(self, by: int) -> bool:
        """Move to the next or previous differing pair. Returns whether there is one."""
        later = [i for i in self.differing() if (i > self.at if by > 0 else i < self.at)]
        if not later:
            return False
        before, self.at = self.at, later[0] if by > 0 else later[-1]
        flow = self.flow
        self.lay_out_again(self._heads[before], self._heads[self.at])  # their marks changed
        self.scroll_line_to(flow.start(self._heads[self.at]))
        return True

    def build(self, width: int, height: int) -> Flow:
        p, compared = self.palette, self.compared
        self._heads = heads = dict[int, FlowPart]()
        if compared is None:
            return Flow([FlowPart(wrapped(p, self.note, width, p.faint))])
        sides = compared.left, compared.right
        half = max(4, (width - 3) // 2)
        self._width = width
        tops = [self._top(r, n, half) for r, n in zip(sides, compared.numbers, strict=True)]
        top = [self._side_by_side(tops[0], tops[1], half), *self._rewards(sides, half)]
        parts = [FlowPart([*top, *wrapped(p, compared.parting, width, p.warn)])]
        after = 0
        for i in [*compared.differing, len(compared.pairs)]:
            if i > after:
                parts.append(FlowPart([self._equal(after, i - 1)]))
            if i < len(compared.pairs):
                heads[i] = FlowPart(partial(self._pair, compared, i, half), 8)
                parts.append(heads[i])
            after = i + 1
        bottoms = [self._bottom(side, half) for side in sides]
        return Flow(
            [*parts, FlowPart([Line(p).add("─" * width, p.border), self._side_by_side(bottoms[0], bottoms[1], half)])]
        )

    def _pair(self, compared: RolloutComparison, i: int, half: int) -> list[Line]:
        pair = compared.pairs[i]
        lines = [self._head(i, pair)]
        for name, (left, right) in self._fields(compared, pair).items():
            lines += self._rows(left, right, half, name)
        return lines

    def on_placed(self) -> None:
        flow = self.flow
        if self.at in self._heads:
            begin = flow.start(self._heads[self.at])
            self.begin_at(begin - 2 if begin > self.size.height - 4 else 0)

    def _rewards(self, sides: Sequence[TrajectoryRecord], half: int) -> list[Line]:
        p = self.palette
        sums = [_sums(record) for record in sides]
        lines = []
        for name in dict.fromkeys(name for known in sums for name in known):
            halves = []
            for known, other in (sums, reversed(sums)):
                value, differs = known.get(name), known.get(name) != other.get(name)
                line = Line(p).add(f"  {name} ", p.muted, cells=min(16, half - 8))
                halves.append(
                    line.whole(fixed(value, signed=True), p.strong if differs else p.faint, half - line.width)
                )
            lines.append(self._side_by_side(halves[0], halves[1], half))
        arithmetic = [equation(r.formula, 0, r.advantage)[:-1] if r.formula is not None else [] for r in sides]
        for texts in zip_longest(*arithmetic, fillvalue=""):
            cells = [Line(p).add(f"  A {text}" if text else "", p.faint, cells=half) for text in texts]
            lines.append(self._side_by_side(cells[0], cells[1], half))
        return lines

    @staticmethod
    def _fields(compared: RolloutComparison, pair: Pair) -> dict[str, tuple[str, str]]:
        a = compared.left.trajectory.steps[pair[0]] if pair[0] is not None else None
        b = compared.right.trajectory.steps[pair[1]] if pair[1] is not None else None
        both = {name: (field_text(compared.left, a, name), field_text(compared.right, b, name)) for name in NAMES}
        return {name: texts for name, texts in both.items() if any(texts)}

    def _equal(self, first: int, last: int) -> Line:
        p = self.palette
        several = f"steps {first + 1} to {last + 1} are" if last > first else f"step {first + 1} is"
        line = Line(p).add(f" = {several} equal ", p.faint)
        return line.add("─" * max(0, self._width - line.width), p.border)

    def _head(self, i: int, pair: Pair) -> Line:
        p = self.palette
        selected = i == self.at
        line = Line(p).add("▸" if selected else " ", p.accent).add("≠", p.warn_bold)
        left, right = ("–" if n is None else str(n + 1) for n in pair)
        name = f"step {left}" if left == right else f"step {left} │ {right}"
        line.add(f" {name} ", p.title if selected else p.muted)
        return line.add("─" * max(0, self._width - line.width), p.border)

    def _top(self, record: TrajectoryRecord, n: int, width: int) -> Line:
        p, t = self.palette, record.trajectory
        line = Line(p).add(f"{n} ", p.title).add(mark(t.correct) + " ", p.outcome(t.correct))
        if record.breakdown is not None:
            line.whole(f"reward {fixed(record.breakdown.total)}", p.strong, width - line.width)
        if record.advantage is not None:
            text = f"  A {fixed(record.advantage, signed=True)}"
            line.whole(text, p.sign(record.advantage), width - line.width)
        version = "" if record.policy_version is None else f"  by policy v{record.policy_version}"
        return line.whole(version, p.faint, width - line.width).add(
            f"  group {t.group}", p.faint, cells=max(0, width - line.width)
        )

    def _bottom(self, record: TrajectoryRecord, width: int) -> Line:
        p, t = self.palette, record.trajectory
        ended = f", ended by {t.stop_reason}" if t.stop_reason else ""
        text = f"{mark(t.correct)} {t.answer}" if t.answer is not None else f"no answer{ended}"
        return Line(p).add(text, p.outcome(t.correct), cells=width)

    def _rows(self, left: str, right: str, half: int, name: str) -> list[Line]:
        p = self.palette
        style = {"call": p.accent, "reward": p.muted}.get(name, p.text)
        if left == right:
            count = left.count("\n") + 1
            first = Line(p).add(" = ", p.faint).add(left.partition("\n")[0], p.faint, cells=max(1, half - 3))
            if name == "reward" or (count == 1 and name == "call"):
                return [first] * (name == "call")
            return [Line(p).add(f" = {name}: {count:,} equal line{'s' * (count > 1)}", p.faint, cells=self._width)]
        lines, limit = [], _FIELD
        if name in ("thought", "answered") and not (left and right):
            lines.append(
                Line(p).add(f" ≠ {name}: only on the {'left' if left else 'right'}", p.faint, cells=self._width)
            )
            limit = _ONE_SIDE
        cuts = [
            text if len(text) <= limit else text[:limit].rpartition(" ")[0] or text[:limit] for text in (left, right)
        ]
        for row in rows(*cuts):
            if row.equal:
                lines.append(Line(p).add(f"   ⋯ {row.equal:,} equal lines", p.faint, cells=self._width))
                continue
            a, b = (_wrapped(p, pieces or [], half - 1, style) for pieces in (row.left, row.right))
            lines += [self._side_by_side(x or Line(p), y or Line(p), half) for x, y in zip_longest(a, b)]
        more = [len(text) - len(kept) for text, kept in zip((left, right), cuts, strict=True)]
        if any(more):
            notes = [Line(p).add(f"✂ {n:,} more characters" if n else "", p.faint, cells=half) for n in more]
            lines.append(self._side_by_side(notes[0], notes[1], half))
        return lines

    def _side_by_side(self, left: Line, right: Line, half: int) -> Line:
        p = self.palette
        line = Line(p).extend(left)
        return line.to(half + 1).add("│ ", p.border).extend(right)


def field_text(record: TrajectoryRecord, step: Step | None, name: str) -> str:
    """Return the text of a step for one of `NAMES`. Empty if the step has none."""
    if step is None:
        return ""
    if name == "thought":
        return said(step)[0]
    if name == "call":
        return call_text(step)
    if name == "answered":
        return step.observation
    rewards = record.breakdown.steps if record.breakdown is not None else ()
    near = (*rewards[step.index : step.index + 1], *rewards)
    reward = next((s for s in near if s.step == step.index), None)
    if reward is None:
        return ""
    rules = "".join(f"  ✗ {q.rule.replace('_', ' ')} {fixed(q.amount)}" for q in reward.penalties)
    return f"reward {fixed(reward.total, signed=True)}{rules}"


def call_text(step: Step) -> str:
    """Return the calls of a step with their arguments, or its text."""
    shown_calls = [shown(call) for call in calls_of(step)]
    texts = [[f"{call.head} {call.text}".strip(), call.note, *(a.text for a in call.arguments)] for call in shown_calls]
    return "\n".join(text for call in texts for text in call if text) or said(step)[1]


def _sums(record: TrajectoryRecord) -> dict[str, float]:
    sums = {} if record.breakdown is None else record.breakdown.contributions
    return {name: round(value, 6) for name, value in sums.items()}


def _wrapped(palette: Palette, words: Pieces, width: int, style: Style) -> list[Line]:
    """Wrap a line word by word. Words that only one side has are marked."""
    lines: list[Line] = [Line(palette)]
    for word, changed in words:
        for piece in wrap(word, width, len(word)):
            size = cells_of(piece)
            if lines[-1].width and lines[-1].width + 1 + size > width:
                lines.append(Line(palette))
            elif lines[-1].width:
                lines[-1].gap()
            lines[-1].add(piece, style + _CHANGED if changed else style)
    return lines


_CHANGED = Style(bold=True, underline=True)
