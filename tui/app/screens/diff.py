"""Two rollouts side by side: of one group, or of one prompt at two points of the run. Differences are marked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ....engine.runs.errors import RecordError
from ....engine.runs.read.reader import RunReader
from ....engine.runs.types import TrajectoryRecord, TrajectoryRow
from ...format import count
from ..bindings import DIFF
from ..comparison import RolloutComparison
from ..data import Reads
from ..widgets.diff_pane import DiffPane
from ..widgets.line import Line
from ..widgets.pane import Pane
from .base import PagedScreen


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

    view = DIFF

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
        self.frame.refresh_lines()

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
