"""Two rollouts, step beside step: aligned by what they did, with where they part said first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich.style import Style

from ....engine.runs.types import Step, TrajectoryRecord
from ...format import fixed, mark
from ...text import width as cells_of
from ...text import wrap
from ..calls import summary
from ..comparison import Comparison, Pair, marks
from ..theme import Palette
from .line import Line, wrapped
from .pane import Pane

_FIELD = 6_000
"""Characters of a field that are shown at most."""
_SHOWN = 120_000
"""About how many characters are laid out; where there are more, each field is cut visibly and equally."""
_NAMES = ("thought", "call", "answered", "reward")
_MARKED = 1_000_000
"""Pairs of words that are compared in all; fields beyond are shown unmarked."""


class DiffPane(Pane):
    """Both rollouts in two columns."""

    title = ""

    def __init__(self) -> None:
        super().__init__("diff")
        self.compared: Comparison | None = None
        self.note = ""
        self.at = 0
        """The pair under the mark."""
        self._starts: list[int] = []
        self._limit = _FIELD
        self._to_mark = 0
        self._width = 0

    def put(self, compared: Comparison | None, note: str = "") -> None:
        """Two rollouts, with the mark where they part; or what is to be said instead."""
        self.compared, self.note = compared, note
        self.at = next(iter(self.differing()), 0)
        self.changed(keep_scroll=False)

    def differing(self) -> Sequence[int]:
        """Pairs of which call, thought or observation differ."""
        return self.compared.differing if self.compared is not None else ()

    def move(self, by: int) -> bool:
        """To the next (or previous) pair that differs; whether there is one."""
        later = [i for i in self.differing() if (i > self.at if by > 0 else i < self.at)]
        if not later:
            return False
        before, self.at = self.at, later[0] if by > 0 else later[-1]
        lines = self.lines
        if isinstance(lines, list) and self.compared is not None:
            for i in {before, self.at}:  # the texts stay as they were laid out
                lines[self._starts[i]] = self._head(i, self.compared.pairs[i], True)
            self._strips.clear()
            self.refresh()
            self.scroll_line_to(self._starts[self.at])
        return True

    def build(self, width: int, height: int) -> list[Line]:
        """Where they part, then pair under pair."""
        p, compared = self.palette, self.compared
        if compared is None:
            return wrapped(p, self.note, width, p.faint)
        sides = compared.left, compared.right
        half = max(4, (width - 3) // 2)
        fields = [self._fields(compared, pair) for pair in compared.pairs]
        size = sum(min(len(text), _FIELD) for pair in fields for both in pair.values() for text in both)
        if size > _SHOWN:
            self._limit = max(200, _SHOWN // sum(2 * len(pair) for pair in fields))
        else:
            self._limit = _FIELD
        self._to_mark, self._width = _MARKED, width
        tops = [self._top(r, n, half) for r, n in zip(sides, compared.numbers, strict=True)]
        lines = [self._beside(tops[0], tops[1], half)]
        lines += wrapped(p, compared.parting, width, p.warn)
        differing = set(compared.differing)
        self._starts = []
        for i, pair in enumerate(compared.pairs):
            self._starts.append(len(lines))
            lines.append(self._head(i, pair, i in differing))
            for name, (left, right) in fields[i].items():
                lines += self._rows(left, right, half, name)
        lines.append(Line(p).add("─" * width, p.border))
        lines.append(self._beside(self._bottom(sides[0], half), self._bottom(sides[1], half), half))
        return lines

    @staticmethod
    def _fields(compared: Comparison, pair: Pair) -> dict[str, tuple[str, str]]:
        """The texts of two steps that stand beside each other, by their names; those that neither has are left out."""
        a = compared.left.trajectory.steps[pair.left] if pair.left is not None else None
        b = compared.right.trajectory.steps[pair.right] if pair.right is not None else None
        both = {name: (_field(compared.left, a, name), _field(compared.right, b, name)) for name in _NAMES}
        return {name: texts for name, texts in both.items() if any(texts)}

    def _head(self, i: int, pair: Pair, differs: bool) -> Line:
        p = self.palette
        here = i == self.at
        line = Line(p).add("▸" if here else " ", p.accent)
        line.add("≠" if differs else "=", p.warn_bold if differs else p.faint)
        left, right = ("–" if n is None else str(n + 1) for n in (pair.left, pair.right))
        name = f"step {left}" if left == right else f"step {left} │ {right}"
        line.add(f" {name} ", p.title if here else p.muted)
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
        marked_left, marked_right = [(left, False)], [(right, False)]
        pairs = (left.count(" ") + 1) * (right.count(" ") + 1) if left != right else 0
        if pairs <= self._to_mark:
            self._to_mark -= pairs
            marked_left, marked_right = marks(left, right)
        a = _wrapped(p, left, marked_left, half - 1, style, self._limit)
        b = _wrapped(p, right, marked_right, half - 1, style, self._limit)
        return [self._beside(x or Line(p), y or Line(p), half) for x, y in zip_longest(a, b)]

    def _beside(self, left: Line, right: Line, half: int) -> Line:
        p = self.palette
        line = Line(p).extend(left)
        return line.to(half + 1).add("│ ", p.border).extend(right)


def _field(record: TrajectoryRecord, step: Step | None, name: str) -> str:
    if step is None:
        return ""
    if name == "thought":
        return step.thought
    if name == "call":
        return summary(step) if step.action else step.text
    if name == "answered":
        return step.observation
    rewards = record.breakdown.steps if record.breakdown is not None else ()
    near = (*rewards[step.index : step.index + 1], *rewards)
    reward = next((s for s in near if s.step == step.index), None)
    if reward is None:
        return ""
    rules = "".join(f"  ✗ {q.rule.replace('_', ' ')} {fixed(q.amount)}" for q in reward.penalties)
    return f"reward {fixed(reward.total, signed=True)}{rules}"


def _wrapped(
    palette: Palette, text: str, words: list[tuple[str, bool]], width: int, style: Style, limit: int
) -> list[Line]:
    if len(words) <= 1:
        changed = bool(words and words[0][1])
        shown = style + _CHANGED if changed else style
        return wrapped(palette, text, width, shown, limit)
    lines: list[Line] = [Line(palette)]
    for word, changed in words:
        for index, part in enumerate(word.split("\n")):
            if index:
                lines.append(Line(palette))
            for piece in wrap(part, width, 2000):
                size = cells_of(piece)
                if lines[-1].width and lines[-1].width + 1 + size > width:
                    lines.append(Line(palette))
                elif lines[-1].width:
                    lines[-1].gap()
                lines[-1].add(piece, style + _CHANGED if changed else style)
    return lines


_CHANGED = Style(bold=True, underline=True)
