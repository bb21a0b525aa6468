"""Two rollouts, step beside step: aligned by what they did, with where they part said first."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.style import Style

from ....engine.runs.types import Step, TrajectoryRecord
from ...format import fixed, mark
from ...text import width as cells_of
from ...text import wrap
from ..rollout_fields import call_text
from ..theme import Palette
from .line import Line
from .pane import Pane

_WORDS = 400
"""Words of a field that are compared; beyond, the texts are shown unmarked."""
_CHARACTERS = 40_000
_FIELD = 6_000
"""Characters of a field that are shown."""
_ALIGNED = 2_000
"""Steps of a rollout up to which an edit script is computed; beyond, steps are aligned by position."""


@dataclass(frozen=True)
class Pair:
    """Two steps that stand beside each other, by their positions; None where one rollout has none there."""

    left: int | None
    right: int | None


def align(left: Sequence[Step], right: Sequence[Step]) -> list[Pair]:
    """An edit script over the actions: first over whole calls, then, between those, over the tools' names."""
    if max(len(left), len(right)) > _ALIGNED:
        return [Pair(*pair) for pair in zip_longest(range(len(left)), range(len(right)))]
    calls = [[s.action_key if s.action is not None else "?" for s in steps] for steps in (left, right)]
    pairs: list[Pair] = []
    for i1, i2, j1, j2, same in _blocks(calls[0], calls[1]):
        if same:
            pairs += [Pair(i, j) for i, j in zip(range(i1, i2), range(j1, j2), strict=True)]
            continue
        names = [[s.action or "?" for s in steps] for steps in (left[i1:i2], right[j1:j2])]
        for a1, a2, b1, b2, alike in _blocks(names[0], names[1]):
            beside = zip_longest(range(i1 + a1, i1 + a2), range(j1 + b1, j1 + b2))
            if alike or min(a2 - a1, b2 - b1) > 0:
                pairs += [Pair(i, j) for i, j in beside]
            else:
                pairs += [Pair(i, None) for i in range(i1 + a1, i1 + a2)]
                pairs += [Pair(None, j) for j in range(j1 + b1, j1 + b2)]
    return pairs


def _blocks(a: Sequence[str], b: Sequence[str]) -> list[tuple[int, int, int, int, bool]]:
    script = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    return [(i1, i2, j1, j2, tag == "equal") for tag, i1, i2, j1, j2 in script]


def parting(left: Sequence[Step], right: Sequence[Step], pairs: Sequence[Pair]) -> str:
    """One sentence: up to where the two did the same, and what each did then."""
    for at, pair in enumerate(pairs):
        a = left[pair.left] if pair.left is not None else None
        b = right[pair.right] if pair.right is not None else None
        if a is not None and b is not None and _key(a) == _key(b):
            continue
        where = f"They part at step {at + 1}" if at else "They part at the first step"
        if a is None or b is None:
            side, step = ("right", b) if a is None else ("left", a)
            return f"{where}: only the {side} one has {call_text(step) if step is not None else 'a step'} there."
        if a.action_key != b.action_key:
            return f"{where}: left {call_text(a)}, right {call_text(b)}."
        what = "was answered differently" if a.observation != b.observation else "was thought through differently"
        return f"{where}: the same call {call_text(a)} {what}."
    return "They did the same in every step."


class DiffPane(Pane):
    """Both rollouts in two columns."""

    title = ""

    def __init__(self) -> None:
        super().__init__("diff")
        self.left: TrajectoryRecord | None = None
        self.right: TrajectoryRecord | None = None
        self.numbers = (0, 0)
        self.note = ""
        self.pairs: list[Pair] = []
        self.at = 0
        """The pair under the mark."""
        self._differing: list[int] = []
        self._starts: list[int] = []

    def put(
        self, left: TrajectoryRecord | None, right: TrajectoryRecord | None, numbers: tuple[int, int], note: str = ""
    ) -> None:
        """The two rollouts and their numbers; the mark goes to where they part."""
        self.left, self.right, self.numbers, self.note = left, right, numbers, note
        self.pairs, self._differing = [], []
        if left is not None and right is not None:
            a, b = left.trajectory.steps, right.trajectory.steps
            self.pairs = align(a, b)
            self._differing = [
                i
                for i, pair in enumerate(self.pairs)
                if pair.left is None or pair.right is None or _key(a[pair.left]) != _key(b[pair.right])
            ]
        self.at = self._differing[0] if self._differing else 0
        self.changed(keep_scroll=False)

    def differing(self) -> list[int]:
        """Pairs of which call, thought or observation differ."""
        return self._differing

    def move(self, by: int) -> bool:
        """To the next (or previous) pair that differs; whether there is one."""
        later = [i for i in self._differing if (i > self.at if by > 0 else i < self.at)]
        if not later:
            return False
        self.at = later[0] if by > 0 else later[-1]
        self.changed()
        if self.lines and self.at < len(self._starts):
            self.scroll_line_to(self._starts[self.at])
        return True

    def build(self, width: int, height: int) -> list[Line]:
        """Where they part, then pair under pair."""
        p = self.palette
        if self.left is None or self.right is None:
            return [Line(p).add(t, p.faint) for t in wrap(self.note, width)]
        steps = self.left.trajectory.steps, self.right.trajectory.steps
        half = max(4, (width - 3) // 2)
        tops = [self._top(r, n, half) for r, n in zip((self.left, self.right), self.numbers, strict=True)]
        lines = [self._beside(tops[0], tops[1], half)]
        lines += [Line(p).add(t, p.warn) for t in wrap(parting(*steps, self.pairs), width)]
        differing = set(self._differing)
        self._starts = []
        for i, pair in enumerate(self.pairs):
            self._starts.append(len(lines))
            lines.append(self._head(i, pair, i in differing, width))
            a = steps[0][pair.left] if pair.left is not None else None
            b = steps[1][pair.right] if pair.right is not None else None
            for name in ("thought", "call", "answered", "reward"):
                x, y = self._field(self.left, a, name), self._field(self.right, b, name)
                if x or y:
                    lines += self._rows(x, y, half, name)
        lines.append(Line(p).add("─" * width, p.border))
        lines.append(self._beside(self._bottom(self.left, half), self._bottom(self.right, half), half))
        return lines

    def _head(self, i: int, pair: Pair, differs: bool, width: int) -> Line:
        p = self.palette
        here = i == self.at
        line = Line(p).add("▸" if here else " ", p.accent)
        line.add("≠" if differs else "=", p.warn_bold if differs else p.faint)
        left, right = ("–" if n is None else str(n + 1) for n in (pair.left, pair.right))
        name = f"step {left}" if left == right else f"step {left} │ {right}"
        line.add(f" {name} ", p.title if here else p.muted)
        return line.add("─" * max(0, width - line.width), p.border)

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

    @staticmethod
    def _field(record: TrajectoryRecord, step: Step | None, name: str) -> str:
        if step is None:
            return ""
        if name == "thought":
            return step.thought
        if name == "call":
            return call_text(step, _FIELD) if step.action else step.text
        if name == "answered":
            return step.observation
        reward = next((s for s in record.breakdown.steps if s.step == step.index), None) if record.breakdown else None
        if reward is None:
            return ""
        rules = "".join(f"  ✗ {q.rule.replace('_', ' ')} {fixed(q.amount)}" for q in reward.penalties)
        return f"reward {fixed(reward.total, signed=True)}{rules}"

    def _rows(self, left: str, right: str, half: int, name: str) -> list[Line]:
        p = self.palette
        style = {"call": p.accent, "reward": p.muted}.get(name, p.text)
        marked_left, marked_right = marks(left, right)
        a = _wrapped(p, left, marked_left, half - 1, style)
        b = _wrapped(p, right, marked_right, half - 1, style)
        return [self._beside(x or Line(p), y or Line(p), half) for x, y in zip_longest(a, b)]

    def _beside(self, left: Line, right: Line, half: int) -> Line:
        p = self.palette
        line = Line(p).extend(left)
        return line.to(half + 1).add("│ ", p.border).extend(right)


def _key(step: Step) -> tuple[str, str, str]:
    return step.action_key, step.thought, step.observation


def marks(left: str, right: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Words of both texts, each with whether it is only there."""
    if len(left) + len(right) > _CHARACTERS or left == right:
        return [(left, False)], [(right, False)]
    a, b = left.split(" "), right.split(" ")
    if len(a) > _WORDS or len(b) > _WORDS:
        return [(left, False)], [(right, False)]
    out_a: list[tuple[str, bool]] = []
    out_b: list[tuple[str, bool]] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        changed = tag != "equal"
        out_a += [(w, changed) for w in a[i:j]]
        out_b += [(w, changed) for w in b[k:m]]
    return out_a, out_b


def _wrapped(palette: Palette, text: str, words: list[tuple[str, bool]], width: int, style: Style) -> list[Line]:
    if len(words) <= 1:
        changed = bool(words and words[0][1])
        shown = style + _CHANGED if changed else style
        return [Line(palette).add(t, shown) for t in wrap(text, width, _FIELD)] if text else []
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
