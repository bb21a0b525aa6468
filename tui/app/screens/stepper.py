"""Step through a trajectory: its group, the step, and the reward of the step as arithmetic."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ....engine.runs.errors import RecordError
from ....engine.runs.query import Query
from ....engine.runs.types import TrajectoryRecord, TrajectoryRow
from ...format import count
from ..bindings import STEP, bindings
from ..data import Reads
from ..destinations import Diff
from ..widgets import graphics
from ..widgets.frame import Box, Part, split
from ..widgets.group_panel import GroupPanel
from ..widgets.image_view import ImagePane
from ..widgets.line import Line
from ..widgets.pane import Pane
from ..widgets.reward_arithmetic import RewardArithmetic
from ..widgets.step_panel import StepPanel
from ..widgets.token_view import TokenView
from .base import AppScreen

_KEPT = 12
"""Opened trajectories that are kept, so that going back and forth reads nothing."""


class StepperScreen(AppScreen):
    """`h/l` steps, `H/L` trajectories of the list it was opened from, `[` and `]` rollouts of the group."""

    view = STEP
    BINDINGS = bindings(STEP)

    def __init__(self, reads: Reads, ref: str | int, query: Query | None = None, step: int | None = None) -> None:
        super().__init__()
        self.reads = reads
        self.asks = query or Query()
        self.ref: str | int = int(ref) if isinstance(ref, str) and ref.isdigit() else ref
        self.step = step or 0
        self.find = ""
        self.n = 0
        self.record: TrajectoryRecord | None = None
        self.rows: Sequence[TrajectoryRow] = ()
        self._kept: OrderedDict[int, tuple[TrajectoryRecord, Sequence[TrajectoryRow]]] = OrderedDict()
        self._total = 0
        self._mode = "step"
        self._kind: graphics.Kind = "blocks"
        self._image_wanted = True
        self._image_large = False
        self.group = GroupPanel()
        self.text = StepPanel()
        self.tokens = TokenView()
        self.image = ImagePane()
        self.reward = RewardArithmetic()

    def panes(self) -> list[Pane]:
        """Group, step (or tokens), image, reward."""
        return [self.text, self.tokens, self.group, self.image, self.reward]

    def plan(self, width: int, height: int) -> list[Box]:
        """Three columns; under 100 cells the group becomes two lines on top; under 60 the reward goes below."""
        body = "tokens" if self._mode == "tokens" else "step"
        boxes: list[Box] = []
        if width >= 100:
            (gx, gw), (sx, sw), (rx, rw) = split(width, [Part(28, 0.4, 38), Part(44, 2.0), Part(36, 0.8, 56)])
            boxes += [Box("group", gx, 0, gw, height), Box("reward", rx, 0, rw, height)]
            top, middle = 0, height
        elif width >= 60:
            (sx, sw), (_, _) = (0, width), (0, 0)
            top = 3 if height >= 16 else 0
            if top:
                boxes.append(Box("group", 0, 0, width, top + 1))
            middle = height - top
            (sx, sw), (rx, rw) = split(width, [Part(30, 1.4), Part(36, 0.6, 42)])
            boxes.append(Box("reward", rx, top, rw, middle))
        else:
            sx, sw, top = 0, width, 0
            below = max(6, height // 3) if height >= 14 else 0
            if below:
                boxes.append(Box("reward", 0, height - below, width, below))
            middle = height - below + (1 if below else 0)
        image = self._image_height(sw, middle)
        if image:
            boxes.append(Box("image", sx, top + middle - image, sw, image))
            middle -= image - 1
        boxes.append(Box(body, sx, top, sw, middle))
        return boxes

    def _image_height(self, width: int, room: int) -> int:
        if not self._image_wanted or self._mode == "tokens" or not self.image.source or room < 16:
            return 0
        share = 0.68 if self._image_large else 0.5
        return max(8, min(self.image.rows_for(width - 2) + 2, int(room * share)))

    def on_mount(self) -> None:
        """Open what was asked for."""
        self._active = "step"
        self._kind = graphics.kind()
        if self._kind != "blocks":
            self.image.cell = graphics.cell_pixels()
            self.image.on_picture = self._show_picture
        try:
            n = self.reads.now.bodies.number(self.ref)
        except (RecordError, LookupError) as error:
            problems = "; ".join(self.reads.now.problems)
            self.text.put(None, 0, f"{str(error).strip(chr(34))}. {problems}".strip())
            return
        self._total = self.reads.now.rollouts.total()
        self._open(n, self.step)

    def header(self, width: int) -> tuple[Line, Line]:
        """None: the first line holds the titles of the panes."""
        return Line(self.palette), Line(self.palette)

    def status(self, width: int) -> Line:
        """Run, number and query, and how the rollout ended, at the right of the last line."""
        p = self.palette
        line = Line(p)
        tells = self.asks.tells()
        if tells and width >= 110:
            line.add(tells, p.accent, cells=min(len(tells), width // 4)).add(" · ", p.faint)
        line.add(self.reads.path.name, p.muted, cells=min(16, len(self.reads.path.name)))
        if self.n:
            line.add(" · ", p.faint).add(count(self.n), p.strong)
        if self._total and width >= 90:
            line.add(f" of {count(self._total)}", p.muted)
        return line

    # -- opening ------------------------------------------------------------------------------------------------

    def _load(self, n: int) -> tuple[TrajectoryRecord, Sequence[TrajectoryRow]]:
        if n in self._kept:
            self._kept.move_to_end(n)
            return self._kept[n]
        record = self.reads.now.bodies.trajectory(n)
        # by the name as the record keeps it: what a model wrote may hold what no database takes
        here = self.reads.now.rollouts.rows([n])
        rows = self.reads.now.rollouts.group(here[0].group) if here else []
        self._kept[n] = (record, rows)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return record, rows

    def _open(self, n: int, step: int = 0) -> None:
        try:
            record, rows = self._load(n)
        except (RecordError, LookupError) as error:
            self.record, self.n = None, n
            self.text.put(None, 0, str(error))
            self.frame.refresh_lines()
            return
        self.n, self.record, self.rows = n, record, rows
        last = len(record.trajectory.steps) - 1
        self.step = max(0, min(step, last))
        self._show()

    def _show(self) -> None:
        record = self.record
        if record is None:
            return
        had_image = bool(self.image.source)
        self.image.put(self.reads.path, record.trajectory, self.step)
        if had_image != bool(self.image.source):
            self.frame.replan()
        self.text.image_note = self.image.note
        self.text.find = self.find
        self.text.put(record, self.step, "; ".join(self.reads.now.problems))
        self.text.title = self.text.heading()
        self.group.title = self._group_title(record)
        self.group.put(self.rows, self.n, record, self.step)
        self.reward.put(record, self.step, self.rows)
        if self._mode == "tokens":
            self._show_tokens()
        self.frame.refresh_lines()

    def _show_picture(self) -> None:
        """Real pixels over the image's box, in terminals that have them."""
        found = self.query("#graphic")
        picture, region = self.image.picture, self.image.region
        if picture is None or not region.area:
            for widget in found:
                widget.display = False
            return
        if found:
            widget = found.first()
        else:
            widget = graphics.make(self._kind)
            self.mount(widget)
        across, down = self.image.cell or (10, 20)
        width, height = -(-picture.width // across), -(-picture.height // down)
        widget.styles.width, widget.styles.height = min(width, region.width), min(height, region.height)
        widget.styles.offset = (region.x + (region.width - width) // 2, region.y)
        widget.image = picture  # type: ignore[attr-defined]
        widget.display = True

    def _group_title(self, record: TrajectoryRecord) -> str:
        t = record.trajectory
        title = f"group {t.group} · prompt {t.prompt_id}"
        return title + (f" · policy v{record.policy_version}" if record.policy_version else "")

    def _show_tokens(self) -> None:
        record = self.record
        assert record is not None
        try:
            tokens = self.reads.now.bodies.tokens(self.n)
            texts = self.reads.now.bodies.token_texts(tokens.token_ids.tolist()) if tokens is not None else []
        except RecordError as error:
            tokens, texts = None, []
            self.tokens.problem = str(error)
        self.tokens.put(tokens, texts, self.step)
        self.tokens.title = self.tokens.heading()

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_step(self, by: int) -> None:
        """Another step of this trajectory."""
        if self.record is None:
            return
        step = max(0, min(self.step + by, len(self.record.trajectory.steps) - 1))
        if step != self.step:
            self.step = step
            self._show()

    def action_rollout(self, by: int) -> None:
        """The next or previous trajectory of the list."""
        direction = 1 if by > 0 else -1
        if self.asks.plain:
            row = self.reads.now.rollouts.seek(self.n, direction, self.asks)
            self._go(row, direction)
        else:
            self.run_worker(self._seek(direction), exclusive=True, group="seek")

    async def _seek(self, direction: int) -> None:
        n, query = self.n, self.asks
        try:
            row = await self.reads.later(lambda reader: reader.rollouts.seek(n, direction, query))
        except RecordError as error:
            self.say(str(error), "error")
            return
        self._go(row, direction)

    def _go(self, row: TrajectoryRow | None, direction: int) -> None:
        if row is None:
            self.say(
                "This is the last trajectory of the list."
                if direction > 0
                else "This is the first trajectory of the list."
            )
        else:
            self._open(row.n)

    def action_sibling(self, by: int) -> None:
        """The next or previous rollout of the group, at the same step."""
        at = next((i for i, r in enumerate(self.rows) if r.n == self.n), None)
        if at is not None and self.rows:
            self._open(self.rows[(at + by) % len(self.rows)].n, self.step)

    def action_next_penalty(self) -> None:
        """The next penalised step of this trajectory; after the last, the first."""
        record = self.record
        if record is None or record.breakdown is None:
            return
        hit = {s.step for s in record.breakdown.steps if s.penalties}
        steps = [i for i, s in enumerate(record.trajectory.steps) if s.index in hit]
        if not steps:
            self.say("No step of this trajectory was penalised.")
            return
        self.step = next((i for i in steps if i > self.step), steps[0])
        self._show()

    def action_tokens(self) -> None:
        """Tokens instead of text; again for the next colouring; after the last, text."""
        if self._mode == "step":
            self._mode = "tokens"
            self.tokens.mode = 0
            self._active = "tokens"
            self._show_tokens()
        elif not self.tokens.next_mode():
            self._mode = "step"
            self._active = "step"
        self.frame.replan()
        self.tokens.title = self.tokens.heading()

    def action_prompt(self) -> None:
        """The whole prompt, or its beginning at the first step."""
        self.text.whole_prompt = not self.text.whole_prompt
        self.text.changed(keep_scroll=False)

    def action_image(self) -> None:
        """Show or hide the image."""
        self._image_wanted = not self._image_wanted
        self.frame.replan()

    def action_image_size(self) -> None:
        """Larger or smaller."""
        self._image_large = not self._image_large
        self.frame.replan()

    def action_first(self) -> None:
        """The first step."""
        self.action_step(-(10**6))

    def action_last(self) -> None:
        """The last step."""
        self.action_step(10**6)

    def action_search(self) -> None:
        """Find in the steps of this trajectory."""
        from ..widgets.prompt_bar import ask

        ask(self, "Find in this trajectory", self.find, self._search, hint="enter finds the next step that holds it")

    def _search(self, text: str) -> None:
        again = text == self.find
        self.find = text
        record = self.record
        if record is None or not text:
            self._show()
            return
        wanted = text.casefold()
        hits = [
            i
            for i, s in enumerate(record.trajectory.steps)
            if wanted in s.text.casefold() or wanted in s.observation.casefold()
        ]
        later = [i for i in hits if i > self.step or (i == self.step and not again)]
        if hits:
            self.step = (later or hits)[0]
        else:
            self.say(f"“{text}” is not in this trajectory.")
        self._show()

    def action_diff(self) -> None:
        """Beside another rollout of the group or the prompt."""
        if self.record is not None:
            self.shell.open(Diff(self.reads.path, self.n))

    def shown_text(self) -> str:
        """The whole trajectory as plain text, for pager, editor and export."""
        from ...export import trajectory_text

        return trajectory_text(self.record) if self.record is not None else ""

    def action_pager(self) -> None:
        """The whole trajectory in $PAGER."""
        from ...export import open_outside

        open_outside(self.app, self.shown_text(), "PAGER", f"{self.n}.txt")

    def action_editor(self) -> None:
        """The whole trajectory in $EDITOR."""
        from ...export import open_outside

        open_outside(self.app, self.shown_text(), "EDITOR", f"{self.n}.txt")

    def action_copy(self) -> None:
        """Copy the step."""
        text = "\n".join(line.plain.rstrip() for line in self.scrolled.lines)
        self.app.copy_to_clipboard(text)
        self.say(f"Copied {len(text.splitlines())} lines.")

    def action_export(self) -> None:
        """The whole trajectory as JSON."""
        if self.record is not None:
            from ...export import export_trajectory

            self.say(f"Written: {export_trajectory(self.reads.path, self.n, self.record)}")

    def on_pane_hit(self, message: Pane.Hit) -> None:
        """A click on a neighbour or on a step of the route."""
        match message.what:
            case ("rollout", int(n)):
                self._open(n, self.step)
            case ("step", int(step)):
                self.step = step
                self._show()
