"""Two rollouts side by side: of one group, or of one prompt at two points of the run. What differs is marked."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.runs.errors import RecordError
from ....engine.runs.types import TrajectoryRecord, TrajectoryRow
from ...export import export_lines
from ..bindings import DIFF, bindings
from ..data import Reads
from ..widgets.diff_pane import DiffPane
from ..widgets.frame import Box
from ..widgets.line import Line
from ..widgets.pane import Pane
from .elsewhere import ShownElsewhere


class Candidates:
    """The rollouts that one can be compared with: those of its group, or those of its prompt in other groups."""

    def __init__(self, reads: Reads, n: int) -> None:
        self._reads = reads
        self.n = n
        self.of_prompt = False
        self.rows: Sequence[TrajectoryRow] = ()
        self.at = 0

    def fill(self) -> None:
        """Read them. In the group the one that earned most differently is first shown: there is most to learn from it;
        over the run, the newest."""
        reader = self._reads.now
        here = next(iter(reader.rollouts.rows([self.n])), None)
        self.rows, self.at = (), 0
        if here is None:
            return
        if self.of_prompt:
            found = [r for r in reader.rollouts.prompt(here.prompt_id, 200) if r.group != here.group]
            self.at = max(0, len(found) - 1)
        else:
            found = [r for r in reader.rollouts.group(here.group) if r.n != self.n]
            mine = here.reward or 0.0
            self.at = max(range(len(found)), key=lambda i: abs((found[i].reward or 0.0) - mine), default=0)
        self.rows = found

    def switch(self) -> None:
        """From the group to the prompt over the run, or back."""
        self.of_prompt = not self.of_prompt
        self.fill()

    def move(self, by: int) -> None:
        """Another one, around the ends."""
        if self.rows:
            self.at = (self.at + by) % len(self.rows)

    @property
    def current(self) -> TrajectoryRow | None:
        """The one that is compared with."""
        return self.rows[self.at] if self.rows else None


class DiffScreen(ShownElsewhere):
    """`[` and `]` choose the other rollout; `p` chooses among the group or the prompt's whole history."""

    view = DIFF
    BINDINGS = bindings(DIFF)

    def __init__(self, reads: Reads, n: int) -> None:
        super().__init__()
        self.reads = reads
        self.n = n
        self.left: TrajectoryRecord | None = None
        self.candidates = Candidates(reads, n)
        self.body = DiffPane()

    def panes(self) -> list[Pane]:
        """One."""
        return [self.body]

    def plan(self, width: int, height: int) -> list[Box]:
        """The whole screen."""
        return [Box("diff", 0, 0, width, height)]

    def header(self, width: int) -> tuple[Line, Line]:
        """Among which the other one was chosen."""
        p = self.palette
        left = Line(p).add("diff", p.title).add(" · ", p.faint)
        if self.left is not None:
            t = self.left.trajectory
            among = f"prompt {t.prompt_id} over the run" if self.candidates.of_prompt else f"group {t.group}"
            left.add(among, p.muted)
        right = Line(p)
        if self.candidates.rows:
            right.add(f"other {self.candidates.at + 1} of {len(self.candidates.rows)}", p.muted)
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
        self.candidates.fill()
        if not self.candidates.rows:
            self.candidates.switch()
        self._show()

    def _show(self) -> None:
        other = self.candidates.current
        if other is None:
            where = "prompt" if self.candidates.of_prompt else "group"
            note = f"There is no other rollout of this {where} to compare with. p changes where to look."
            self.body.put(None, None, (0, 0), note)
        else:
            try:
                self.body.put(self.left, self.reads.now.bodies.trajectory(other.n), (self.n, other.n))
            except (RecordError, LookupError) as error:
                self.body.put(None, None, (0, 0), str(error))
        self.frame.refresh_lines()

    def action_other(self, by: int) -> None:
        """Another candidate."""
        self.candidates.move(by)
        self._show()

    def action_pool(self) -> None:
        """Candidates of the group, or of the prompt over the run."""
        if self.left is not None:
            self.candidates.switch()
            self._show()

    def action_step(self, by: int) -> None:
        """The next or previous step that differs."""
        if not self.body.move(by) and self.body.left is not None and not self.body.differing():
            self.say("These two did the same in every step.")

    def shown_text(self) -> str:
        """What is shown, as text."""
        return "\n".join(line.plain.rstrip() for line in self.body.lines)

    def shown_name(self) -> str:
        """One name for all."""
        return "diff.txt"

    def action_copy(self) -> None:
        """Copy all of it."""
        self.copy(self.shown_text(), "the comparison")

    def action_export(self) -> None:
        """Write it to a file."""
        try:
            self.say(f"Written: {export_lines(self.reads.path, f'diff-{self.n}', self.shown_text())}")
        except OSError as error:
            self.say(str(error), "error")
