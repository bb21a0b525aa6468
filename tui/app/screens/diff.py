"""Two rollouts side by side: of one group, or of one prompt at two points of the run. What differs is marked."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import zip_longest

from rich.style import Style

from ....engine.runs.errors import RecordError
from ....engine.runs.types import Step, TrajectoryRecord, TrajectoryRow
from ...format import fixed, mark
from ...text import wrap
from ..bindings import DIFF, bindings
from ..data import Reads
from ..widgets.frame import Box, Part, split
from ..widgets.line import Line
from ..widgets.pane import Pane
from ..widgets.step_panel import call_text
from .base import AppScreen

_WORDS = 400
"""Words of a field that are compared; beyond, the texts are shown unmarked."""


class DiffPane(Pane):
    """Both rollouts, step under step."""

    title = ""

    def __init__(self) -> None:
        super().__init__("diff")
        self.left: TrajectoryRecord | None = None
        self.right: TrajectoryRecord | None = None
        self.numbers = (0, 0)
        self.step = 0
        self.note = ""
        self.starts: list[int] = []

    def put(
        self, left: TrajectoryRecord | None, right: TrajectoryRecord | None, numbers: tuple[int, int], note: str = ""
    ) -> None:
        """The two rollouts and their numbers."""
        self.left, self.right, self.numbers, self.note = left, right, numbers, note
        self.changed(keep_scroll=False)

    def differing(self) -> list[int]:
        """Steps at which call, thought or observation differ."""
        if self.left is None or self.right is None:
            return []
        pairs = zip_longest(self.left.trajectory.steps, self.right.trajectory.steps)
        return [i for i, (a, b) in enumerate(pairs) if a is None or b is None or _key(a) != _key(b)]

    def build(self, width: int, height: int) -> list[Line]:
        """Two columns."""
        p = self.palette
        if self.left is None or self.right is None:
            return [Line(p).add(t, p.faint) for t in wrap(self.note, width)]
        half = (width - 3) // 2
        lines = [
            self._beside(
                self._top(self.left, self.numbers[0], half), self._top(self.right, self.numbers[1], half), half
            ),
        ]
        differing = set(self.differing())
        self.starts = []
        pairs = zip_longest(self.left.trajectory.steps, self.right.trajectory.steps)
        for i, (a, b) in enumerate(pairs):
            self.starts.append(len(lines) + 1)
            differs = i in differing
            here = i == self.step
            head = (
                Line(p)
                .add("▸" if here else " ", p.accent)
                .add("≠" if differs else "=", p.warn_bold if differs else p.faint)
            )
            head.add(f" step {i + 1} ", p.title if here else p.muted).add("─" * max(0, width - head.width), p.border)
            lines.append(head)
            for name in ("thought", "call", "answered", "reward"):
                x, y = self._field(self.left, a, name), self._field(self.right, b, name)
                if x or y:
                    lines += self._rows(x, y, half, name)
        lines.append(Line(p).add("─" * width, p.border))
        lines.append(self._beside(self._bottom(self.left, half), self._bottom(self.right, half), half))
        return lines

    def _top(self, record: TrajectoryRecord, n: int, width: int) -> Line:
        p, t = self.palette, record.trajectory
        line = Line(p).add(f"{n} ", p.title).add(mark(t.correct) + " ", p.outcome(t.correct))
        if record.breakdown is not None:
            line.add("reward ", p.muted).add(fixed(record.breakdown.total), p.strong)
        if record.advantage is not None:
            line.add("  A ", p.muted).add(fixed(record.advantage, signed=True), p.sign(record.advantage))
        return line.add(f"  group {t.group} v{record.policy_version}", p.faint, cells=max(0, width - line.width))

    def _bottom(self, record: TrajectoryRecord, width: int) -> Line:
        p, t = self.palette, record.trajectory
        text = f"{mark(t.correct)} {t.answer}" if t.answer is not None else f"no answer, ended by {t.stop_reason}"
        return Line(p).add(text, p.outcome(t.correct), cells=width)

    @staticmethod
    def _field(record: TrajectoryRecord, step: Step | None, name: str) -> str:
        if step is None:
            return ""
        if name == "thought":
            return step.thought
        if name == "call":
            return call_text(step, whole=True) if step.action else step.text
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
        a = _wrapped(self.palette, left, marked_left, half - 1, style)
        b = _wrapped(self.palette, right, marked_right, half - 1, style)
        return [self._beside(x or Line(p), y or Line(p), half) for x, y in zip_longest(a, b)]

    def _beside(self, left: Line, right: Line, half: int) -> Line:
        p = self.palette
        line = Line(p).extend(left)
        return line.to(half + 1).add("│ ", p.border).extend(right)


def _key(step: Step) -> tuple[str, str, str]:
    return step.action_key, step.thought, step.observation


def marks(left: str, right: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Words of both texts, each with whether it is only there."""
    a, b = left.split(" "), right.split(" ")
    if left == right or len(a) > _WORDS or len(b) > _WORDS or len(left) + len(right) > 40_000:
        return [(left, False)], [(right, False)]
    out_a: list[tuple[str, bool]] = []
    out_b: list[tuple[str, bool]] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        changed = tag != "equal"
        out_a += [(w, changed) for w in a[i:j]]
        out_b += [(w, changed) for w in b[k:m]]
    return out_a, out_b


def _wrapped(palette, text: str, words: list[tuple[str, bool]], width: int, style: Style) -> list[Line]:
    if len(words) <= 1:
        changed = bool(words and words[0][1])
        return (
            [Line(palette).add(t, style + _CHANGED if changed else style) for t in wrap(text, width, 6000)]
            if text
            else []
        )
    lines: list[Line] = [Line(palette)]
    for word, changed in words:
        for index, part in enumerate(word.split("\n")):
            if index:
                lines.append(Line(palette))
            for piece in wrap(part, width, 2000):
                from ...text import width as cells

                size = cells(piece)
                if lines[-1].width and lines[-1].width + 1 + size > width:
                    lines.append(Line(palette))
                elif lines[-1].width:
                    lines[-1].gap()
                lines[-1].add(piece, style + _CHANGED if changed else style)
    return lines


_CHANGED = Style(bold=True, underline=True)


class DiffScreen(AppScreen):
    """`[` and `]` choose the other rollout; `p` chooses among the group or the prompt's whole history."""

    view = DIFF
    BINDINGS = bindings(DIFF)

    def __init__(self, reads: Reads, n: int) -> None:
        super().__init__()
        self.reads = reads
        self.n = n
        self.left: TrajectoryRecord | None = None
        self.pool_of_prompt = False
        self.others: Sequence[TrajectoryRow] = ()
        self.at = 0
        self.body = DiffPane()

    def panes(self) -> list[Pane]:
        """One."""
        return [self.body]

    def plan(self, width: int, height: int) -> list[Box]:
        """The whole screen."""
        (y, h), *_ = split(height, [Part(height, 1.0)])
        return [Box("diff", 0, y, width, h)]

    def header(self, width: int) -> tuple[Line, Line]:
        """Among which the other one was chosen."""
        p = self.palette
        left = Line(p).add("diff", p.title).add(" · ", p.faint)
        if self.left is not None:
            t = self.left.trajectory
            left.add(f"prompt {t.prompt_id} over the run" if self.pool_of_prompt else f"group {t.group}", p.muted)
        right = Line(p)
        if self.others:
            right.add(f"other {self.at + 1} of {len(self.others)}", p.muted)
            right.add(f"   {len(self.body.differing())} steps differ", p.warn)
        return left, right

    def on_mount(self) -> None:
        """Read both."""
        self._active = "diff"
        try:
            self.left = self.reads.now.bodies.trajectory(self.n)
        except (RecordError, LookupError) as error:
            self.body.put(None, None, (0, 0), str(error))
            return
        self._fill()
        if not self.others:
            self.pool_of_prompt = True
            self._fill()
        self._show()

    def _fill(self) -> None:
        assert self.left is not None
        here = self.reads.now.rollouts.rows([self.n])
        if not here:
            self.others, self.at = (), 0
            return
        row = here[0]
        rows = (
            self.reads.now.rollouts.prompt(row.prompt_id, 200)
            if self.pool_of_prompt
            else self.reads.now.rollouts.group(row.group)
        )
        if self.pool_of_prompt:
            rows = [r for r in rows if r.group != row.group]
        self.others = [r for r in rows if r.n != self.n]

        # the one that went most differently is the one to learn from; over the run, the newest
        def distance(i: int) -> float:
            mine = self.left.breakdown.total if self.left and self.left.breakdown else None
            return abs((self.others[i].reward or 0.0) - (mine or 0.0))

        self.at = (
            (len(self.others) - 1 if self.pool_of_prompt else max(range(len(self.others)), key=distance))
            if self.others
            else 0
        )

    def _show(self) -> None:
        if not self.others:
            where = "prompt" if self.pool_of_prompt else "group"
            self.body.put(
                None,
                None,
                (0, 0),
                f"There is no other rollout of this {where} to compare with. p changes where to look.",
            )
        else:
            other = self.others[self.at]
            try:
                self.body.put(self.left, self.reads.now.bodies.trajectory(other.n), (self.n, other.n))
            except (RecordError, LookupError) as error:
                self.body.put(None, None, (0, 0), str(error))
            steps = self.body.differing()
            self.body.step = steps[0] if steps else 0
            self.body.changed()
        self.frame.refresh_lines()

    def action_other(self, by: int) -> None:
        """Another candidate."""
        if self.others:
            self.at = (self.at + by) % len(self.others)
            self._show()

    def action_pool(self) -> None:
        """Candidates of the group, or of the prompt over the run."""
        if self.left is not None:
            self.pool_of_prompt = not self.pool_of_prompt
            self._fill()
            self._show()

    def action_step(self, by: int) -> None:
        """The next or previous step that differs."""
        steps = self.body.differing()
        later = [i for i in steps if (i > self.body.step if by > 0 else i < self.body.step)]
        if later:
            self.body.step = later[0] if by > 0 else later[-1]
            self.body.changed()
            self.body.scroll_line_to(self.body.starts[self.body.step] - 1 if self.body.starts else 0)
        elif not steps:
            self.say("These two did the same in every step.")

    def shown_text(self) -> str:
        """What is shown, as text."""
        return "\n".join(line.plain.rstrip() for line in self.body.lines)

    def action_copy(self) -> None:
        """Copy all of it."""
        self.app.copy_to_clipboard(self.shown_text())
        self.say("Copied the comparison.")

    def action_export(self) -> None:
        """Write it to a file."""
        from ...export import export_lines

        self.say(f"Written: {export_lines(self.reads.path, f'diff-{self.n}', self.shown_text())}")

    def action_pager(self) -> None:
        """Open it in $PAGER."""
        from ...export import open_outside

        open_outside(self.app, self.shown_text(), "PAGER", "diff.txt")

    def action_editor(self) -> None:
        """Open it in $EDITOR."""
        from ...export import open_outside

        open_outside(self.app, self.shown_text(), "EDITOR", "diff.txt")
