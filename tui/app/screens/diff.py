"""Two rollouts side by side: of one group, or of one prompt at two points of the run. Differences are marked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest

from rich.style import Style

from ....engine.runs.errors import RecordError
from ....engine.runs.read.reader import RunReader
from ....engine.runs.types import TrajectoryRecord, TrajectoryRow
from ...advantage import equation
from ...format import count, fixed, mark
from ...text import distinct_names, longest, wrap
from ...text import width as cells_of
from ..comparison import Pair, Pieces, RolloutComparison, rows
from ..data import Reads
from ..rollout_fields import COMPARED, field_text
from ..theme import Palette
from ..widgets.pane import Line, Pane, wrapped
from ..widgets.text_layout import Flow, FlowPane, FlowPart
from .base import PagedScreen

_FIELD = 6_000
"""Maximum number of characters of a field that are shown."""


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
        names = list(dict.fromkeys(name for known in sums for name in known))
        room = max(1, min(longest(names, 13), half - 11))
        for name, shown in zip(names, distinct_names(names, room), strict=True):
            halves = []
            for known, other in (sums, reversed(sums)):
                value, differs = known.get(name), known.get(name) != other.get(name)
                line = Line(p).add(f"  {shown} ", p.muted, cells=room + 3)
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
        both = {name: (field_text(compared.left, a, name), field_text(compared.right, b, name)) for name in COMPARED}
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
        if record.reward is not None:
            line.whole(f"reward {fixed(record.reward)}", p.strong, width - line.width)
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
            limit = 240  # of a text without counterpart
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


def _sums(record: TrajectoryRecord) -> dict[str, float]:
    sums = {} if record.breakdown is None else record.breakdown.contributions
    return {name: round(value, 6) for name, value in sums.items()}


def _wrapped(palette: Palette, words: Pieces, width: int, style: Style) -> list[Line]:
    """Wrap a line word by word. Words that only one side has are marked."""
    lines, marked = [Line(palette)], style + Style(bold=True, underline=True)
    for word, changed in words:
        for piece in wrap(word, width, len(word)):
            size = cells_of(piece)
            if lines[-1].width and lines[-1].width + 1 + size > width:
                lines.append(Line(palette))
            elif lines[-1].width:
                lines[-1].gap()
            lines[-1].add(piece, marked if changed else style)
    return lines


def candidates(reader: RunReader, n: int, same_prompt: bool) -> tuple[Sequence[TrajectoryRow], int]:
    """Return the rollouts to compare with, and the index of the first to show: the newest of a prompt, or the one of a
    group whose reward differs most."""
    current = next(iter(reader.rollouts.rows([n])), None)
    if current is None:
        return (), 0
    if same_prompt:
        found = [r for r in reader.rollouts.prompt(current.prompt_id, 200) if r.group != current.group]
        return found, max(0, len(found) - 1)
    found = [r for r in reader.rollouts.group(current.group) if r.n != n]
    reward = current.reward or 0.0
    return found, max(range(len(found)), key=lambda i: abs((found[i].reward or 0.0) - reward), default=0)


class DiffScreen(PagedScreen):
    """`[` and `]` choose the other rollout: of the same group or prompt, or one of `others` in another run. `p`
    switches between the group and the prompt's history."""

    view = "diff"

    def __init__(self, reads: Reads, n: int, other: Reads | None = None, others: Sequence[int] = ()) -> None:
        super().__init__()
        self.reads, self.n = reads, n
        self.other, self.others = other or reads, others
        self.left: TrajectoryRecord | None = None
        self.rows: Sequence[TrajectoryRow] = ()
        self.at = 0
        """The index of the other rollout in `rows`."""
        self.of_prompt = False
        self.body = DiffPane()

    def panes(self) -> list[Pane]:
        return [self.body]

    def header(self, width: int) -> tuple[Line, Line]:
        p = self.palette
        left = Line(p).add("diff", p.title).add(" · ", p.faint)
        if self.left is not None:
            t = self.left.trajectory
            among = f"prompt {t.prompt_id} over the run" if self.of_prompt else f"group {t.group}"
            among = f"{self.reads.path.name} │ {self.other.path.name}" if self.others else among
            left.add(among, p.muted)
        right = Line(p)
        if self.rows:
            right.add(f"other {self.at + 1} of {len(self.rows)}", p.muted)
            differing = count(len(self.body.differing()), "step differs", "steps differ")
            right.add(f"   {differing}", p.warn)
        return left, right

    def hint_label(self, action: str, label: str) -> str:
        return "" if action == "pool" and self.others else label

    def on_mount(self) -> None:
        self._begin(partial(self._choose, either=True))

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        self.run_worker(self._report_problems(work), group="diff", exclusive=True)

    async def _report_problems(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with self.patience(lambda: self.body.put(None, "reading…")):
                await work()
        except (RecordError, LookupError) as error:
            self.body.put(None, str(error))

    async def _choose(self, either: bool = False) -> None:
        if self.left is None:
            self.left = await self.reads.later(lambda reader: reader.bodies.trajectory(self.n))
        if self.others:
            self.rows, self.at = await self.other.later(lambda reader: reader.rollouts.rows(self.others)), 0
        else:
            self.rows, self.at = await self.reads.later(lambda reader: candidates(reader, self.n, self.of_prompt))
        if either and not self.rows:
            self.of_prompt = True
            self.rows, self.at = await self.reads.later(lambda reader: candidates(reader, self.n, True))
        await self._compare()

    async def _compare(self) -> None:
        left, other = self.left, self.rows[self.at] if self.rows else None
        if left is None or other is None:
            where = "prompt" if self.of_prompt else "group"
            self.body.put(
                None, f"This {where} has no other rollout to compare with. p switches between group and prompt."
            )
            return
        numbers = self.n, other.n
        compared = await self.other.later(
            lambda reader: RolloutComparison.of(left, reader.bodies.trajectory(other.n), numbers)
        )
        self.body.put(compared)

    def action_other(self, by: int) -> None:
        if self.rows:
            self.at = (self.at + by) % len(self.rows)
            self._begin(self._compare)

    def action_pool(self) -> None:
        if self.left is not None and not self.others:
            self.of_prompt = not self.of_prompt
            self._begin(self._choose)

    def action_step(self, by: int) -> None:
        if not self.body.move(by) and self.body.compared is not None and not self.body.differing():
            self.say("All steps are the same.")

    def shown_text(self) -> str:
        return "\n".join(self.body.copied)

    def shown_name(self) -> str:
        return f"diff-{self.n}.txt"

    def action_copy(self) -> None:
        self.copy(self.shown_text(), "the comparison")
