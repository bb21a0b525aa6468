"""Step through a trajectory: its group, the step, and the reward of the step as arithmetic."""

from __future__ import annotations

from collections.abc import Awaitable

from ....engine.runs.errors import RecordError
from ....engine.runs.read.bodies import Alphabet
from ....engine.runs.search.query import EVERYTHING, Query
from ....engine.runs.types import TrajectoryRecord
from ...format import count, fixed
from ..data import Reads
from ..outline import OutlineOf, has_step_rewards
from ..widgets import token_view
from ..widgets.frame import Box
from ..widgets.image_view import ImagePane
from ..widgets.list_panels import GroupPanel
from ..widgets.pane import Line, Pane
from ..widgets.prompt_bar import ask
from ..widgets.reading import ReadingPanel
from ..widgets.reward_arithmetic import RewardArithmetic
from ..widgets.token_view import TokenView
from .outline_keys import OutlineKeys, RolloutKeys
from .reading_screen import ReadingScreen, is_wide

_TEXT = 72
"""Minimum width of the text with both borders, in columns."""
_IMAGE_ROOM = 16
"""Minimum height of text and image together, in rows, for showing the image."""


class StepperScreen(OutlineKeys, RolloutKeys, ReadingScreen):
    """The rollout of a `RolloutCursor` with one body at a time: step, conversation or tokens."""

    view = "stepper"

    def __init__(
        self, reads: Reads, n: int, query: Query = EVERYTHING, step: int = 0, find: tuple[str, ...] = ()
    ) -> None:
        super().__init__(reads, query, find)
        self._start = (n, step)
        self._total = 0
        self._planned: TrajectoryRecord | None = None
        self._body = ""
        self._image_shown = True
        self._image_large = False
        self.group = GroupPanel()
        self.text = ReadingPanel("step", whole=False)
        self.conversation = ReadingPanel("conversation", whole=True)
        self.conversation.on_step = self._scrolled_to
        self.tokens = TokenView()
        self.image = ImagePane()
        self.reward = RewardArithmetic()

    def panes(self) -> list[Pane]:
        return [self.text, self.conversation, self.tokens, self.group, self.steps, self.image, self.reward]

    def plan(self, width: int, height: int) -> list[Box]:
        """Place the text to the right of group, steps and reward. Under 100 columns, one pane fills the screen below a
        line of tabs."""
        boxes: list[Box] = []
        x, text, middle = 0, width, height
        body = self._body or "step"
        if is_wide(width, height):
            record = self.cursor.record
            step_rewards = record is not None and has_step_rewards(record)
            three = step_rewards and width >= 144  # rewards get a column
            usual = 34 if three else min(46, max(38 if step_rewards else 32, width * 3 // 10))
            reward = min(56, max(40, width // 4)) if three else 0
            wider = self.shell.memory.get("stepper side", 0)
            left = max(20, min(usual + wider, width + 1 - _TEXT - (reward - 1 if three else 0)))
            x, text = left - 1, width - left + 1
            if three:
                text -= reward - 1
                boxes.append(Box("reward", width - reward, 0, reward, height))
            boxes += self._left(left, height, step_rewards, stacked=not three)
        elif self.tab:
            body = self.tab
        if body == self._body == "step" and self._image_shown and self.image.source and height >= _IMAGE_ROOM:
            share = 0.68 if self._image_large else 0.5
            rows = max(8, min(self.image.rows_for(text - 2) + 2, int(height * share)))
            boxes.append(Box("image", x, height - rows, text, rows))
            middle -= rows - 1
        return [*boxes, Box(body, x, 0, text, middle)]

    def _left(self, width: int, height: int, step_rewards: bool, stacked: bool) -> list[Box]:
        group = min(len(self.cursor.opened.group) + 4, max(5, height // 3))
        reward = 0
        if stacked:
            max_height = height - group - min(len(self.cursor.steps) + 2, height // 4) if step_rewards else height // 2
            reward = max(4, min(self.reward.rows_for(width - 4) + 2, max_height))
        boxes = [
            Box("group", 0, 0, width, group),
            Box("steps", 0, group - 1, width, height - group - max(0, reward - 1) + 1),
        ]
        return [*boxes, Box("reward", 0, height - reward, width, reward)] if reward else boxes

    def on_mount(self) -> None:
        self.open_rollout(*self._start, find=1 if self.find else 0)

    def header(self, width: int) -> tuple[Line, Line]:
        (line, right), p, row = super().header(width), self.palette, self.cursor.opened.row
        if not self.is_wide and row is not None and row.reward is not None:
            right.add(f"reward {fixed(row.reward)}", p.muted)
            if row.advantage is not None and width >= 78:
                right.add(f" A {fixed(row.advantage, signed=True)}", p.sign(row.advantage))
        return line, right

    def tabs(self) -> list[str]:
        tokens = ["tokens"] if self._body == "tokens" else []
        return ["step", "conversation", *tokens, "steps", "reward", "group"]

    def tab_title(self, name: str) -> str:
        return f"step {self.step + 1}/{len(self.cursor.steps)}" if name == "step" and self.cursor.steps else name

    @property
    def usual(self) -> str:
        return self._body

    def action_show_pane(self, name: str) -> None:
        if name in ("step", "conversation", "tokens"):
            self._show_body(name)
        else:
            super().action_show_pane(name)

    def action_border(self, by: int) -> None:
        wider = self.shell.memory.get("stepper side", 0)
        before = self.frame.boxes[:]
        self.shell.memory.put("stepper side", wider + by)
        self.frame.replan()
        if self.frame.boxes == before:
            self.shell.memory.put("stepper side", wider)

    def status(self, width: int) -> Line:
        p = self.palette
        line = Line(p)
        if self._body == "tokens" and self.tokens.marked:
            line.add(self.tokens.marked, p.accent).add(" · ", p.faint)
        shown = self.list_query.describe()
        if shown and width >= 110:
            line.add(shown, p.accent, most=width // 4).add(" · ", p.faint)
        line.add(self.reads.path.name, p.muted, most=16)
        if self.wanted:
            line.add(" · ", p.faint).add(count(self.wanted), p.strong)
        if self._total and width >= 90:
            line.add(f" of {count(self._total)}", p.muted)
        return line

    # -- showing ------------------------------------------------------------------------------------------------

    def show_reading(self) -> None:
        self.text.put(None, 0)

    def show_rollout(self) -> None:
        opened, step = self.cursor.opened, self.step
        record = opened.record
        self._total = self.reads.now.rollouts.total()
        if not self._body and record is not None:
            usual = "step" if has_step_rewards(record) or len(record.trajectory.steps) < 2 else "conversation"
            kept = self.shell.memory.get("stepper view", "")
            self._body = self._active = kept if kept in ("step", "conversation") else usual
            self.frame.replan()
        if record is not None:
            had_image = bool(self.image.source)
            self.image.put(self.reads.path, record.trajectory, step)
            if had_image != bool(self.image.source):
                self.frame.replan()
        self.text.find = self.conversation.find = self.find
        note = self.note()
        self.text.note = self.conversation.note = note.text if note is not None else ""
        self.text.put(record, step, opened.problem, self.cursor.match)
        if self._body == "conversation":
            self.conversation.put(record, step, opened.problem, self.cursor.match)
        elif self._body == "tokens":
            self._show_tokens()
        self._show_beside()

    def _show_beside(self) -> None:
        opened, step = self.cursor.opened, self.step
        record, row = opened.record, opened.row
        self.group.title = "group"
        if row is not None:
            version = f" · policy v{row.policy_version}" if row.policy_version else ""
            self.group.title += f" {row.group} · prompt {row.prompt_id}{version}"
        self.group.put(opened.group, self.n)
        if self.outline.record is not record:
            self.outline = OutlineOf(record, self.outline.filter if record is not None else "")
        self.steps.put(self.outline, step)
        self.reward.put(self.whole(), step)
        if record is not self._planned:  # panes next to the text get as many rows as they have lines
            self._planned = record
            self.frame.replan()

    def _show_tokens(self) -> None:
        tokens, symbols, problem, bodies = None, [], "", self.reads.now.bodies
        if self.n:
            try:
                tokens = bodies.tokens(self.n)
                if tokens is not None:
                    symbols = bodies.token_symbols(tokens.token_ids[: token_view.LIMIT].tolist())
            except (RecordError, LookupError) as error:
                tokens, problem = None, str(error)
        self.tokens.put(tokens, symbols, bodies.alphabet if symbols else Alphabet.TEXT, self.step, problem)

    def _show_body(self, name: str) -> None:
        self._body = self._active = name
        self.tab = ""
        if name == "tokens":
            self._show_tokens()
        elif name == "conversation":
            self.conversation.put(self.cursor.record, self.step, self.cursor.opened.problem, self.cursor.match)
        self.frame.replan()

    def action_search(self) -> Awaitable[None] | None:
        hint = "enter finds the next match · n and N continue, also in other trajectories"
        return ask(
            self, "Find in this trajectory", self.find[0] if len(self.find) == 1 else "", self.search_here, hint=hint
        )

    def on_pane_hit(self, message: Pane.Hit) -> None:
        match message.what:
            case ("rollout", int(n)):
                self.open_rollout(n, self.step)
            case ("step", int(step)):
                self.go_to_step(step)
            case ("fold", tuple(key)):
                self.reading.toggle(key)

    def _scrolled_to(self, step: int) -> None:
        if self.cursor.go_to(step):
            self._show_beside()

    @property
    def reading(self) -> ReadingPanel:
        return self.conversation if self._body == "conversation" else self.text

    def find_match(self, by: int) -> bool:
        return self.cursor.find(self.find, by, self.reading.raw, self.reading.whole_prompt)

    def action_raw(self) -> None:
        if self._body == "tokens":
            self.tokens.show_raw(not self.tokens.raw)
        else:
            self.cursor.match = None
            for panel in (self.text, self.conversation):
                panel.toggle_raw()

    # -- view keys ----------------------------------------------------------------------------------------------

    def action_tokens(self) -> None:
        if self._body != "tokens":
            self.tokens.mode = 0
            self._show_body("tokens")
        elif not self.tokens.next_mode():
            self._show_body("step")

    def action_mismatch(self) -> None:
        """Go to the token on which sampler and trainer differ most. Pressed again, go to the next one."""
        if self._body != "tokens":
            self._show_body("tokens")
            self.frame.boxes  # noqa: B018  places the pane, whose size determines its scroll position
        if not self.tokens.next_worst():
            self.say("This trajectory has no recorded log-probs of sampler and trainer.")

    def action_conversation(self) -> None:
        self._show_body("step" if self._body == "conversation" and not self.tab else "conversation")
        self.shell.memory.put("stepper view", self._body)

    def hint_label(self, action: str, label: str) -> str:
        if action == "image" and not (self.image.source and self._body == "step"):
            return ""
        return "" if action == "sibling(1)" and len(self.cursor.opened.group) < 2 else label

    def action_image(self) -> None:
        if not self.image.source:
            self.say("This step has no image.")
            return
        self._image_shown = not self._image_shown
        self.frame.replan()

    def action_image_size(self) -> None:
        self._image_large = not self._image_large
        self.frame.replan()

    def action_copy(self) -> None:
        lines = self.scrolled.copied
        self.copy("\n".join(lines), count(len(lines), "line"))
