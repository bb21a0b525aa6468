"""Step through a trajectory: its group, the step, and the reward of the step as arithmetic."""

from __future__ import annotations

from ....engine.runs.errors import RecordError
from ....engine.runs.notes import Note
from ....engine.runs.query import EVERYTHING, Query
from ...advantage import formula_of, recomputed, recomputed_text
from ...export import export_trajectory
from ...format import count
from ...plain import Whole, trajectory_text
from ..bindings import STEP, bindings
from ..data import Reads
from ..destinations import Diff
from ..widgets import token_view
from ..widgets.frame import Box
from ..widgets.graphics import Picture
from ..widgets.group_panel import GroupPanel
from ..widgets.image_view import ImagePane
from ..widgets.learning_lines import Learning
from ..widgets.line import Line
from ..widgets.pane import Pane
from ..widgets.prompt_bar import ask
from ..widgets.reading import ReadingPanel
from ..widgets.reward_arithmetic import RewardArithmetic
from ..widgets.token_view import TokenView
from .among_rollouts import AmongRollouts
from .stepper_plan import ImageBox, stepper_boxes


class StepperScreen(AmongRollouts):
    """Shows where `RolloutCursor` stands: `h/l` are its steps. One body at a time: the step, the whole conversation, or
    the tokens."""

    view = STEP
    BINDINGS = bindings(STEP)

    def __init__(
        self, reads: Reads, ref: str | int, query: Query = EVERYTHING, step: int = 0, find: tuple[str, ...] = ()
    ) -> None:
        super().__init__(reads, query, find)
        self._start = (int(ref) if isinstance(ref, str) and ref.isdigit() else ref, step)
        self._total = 0
        self._body = "step"
        self._image_wanted = True
        self._image_large = False
        self.group = GroupPanel()
        self.text = ReadingPanel("step", whole=False)
        self.conversation = ReadingPanel("conversation", whole=True)
        self.conversation.on_step = self._scrolled_to
        self.tokens = TokenView()
        self.image = ImagePane()
        self.reward = RewardArithmetic()
        self.picture = Picture(self, self.image)

    @property
    def n(self) -> int:
        """The number of the open trajectory; 0 where none is."""
        return self.cursor.n

    @property
    def step(self) -> int:
        """The open step, counted from 0."""
        return self.cursor.step

    def panes(self) -> list[Pane]:
        """Group, the bodies, image, reward."""
        return [self.text, self.conversation, self.tokens, self.group, self.image, self.reward]

    def plan(self, width: int, height: int) -> list[Box]:
        """See `stepper_plan.py`."""
        image = None
        if self._image_wanted and self._body == "step" and self.image.source:
            image = ImageBox(self.image.rows_for, self._image_large)
        return stepper_boxes(width, height, self._body, image)

    def on_mount(self) -> None:
        """Open what was asked for."""
        self._active = self._body
        self.picture.start()
        self._total = self.reads.now.rollouts.total()
        self.open_rollout(*self._start, find=1 if self.find else 0)

    def header(self, width: int) -> tuple[Line, Line]:
        """None: the first line holds the titles of the panes."""
        return Line(self.palette), Line(self.palette)

    def status(self, width: int) -> Line:
        """Run, number and query at the right of the last line."""
        p = self.palette
        line = Line(p)
        shown = self.list_query.describe()
        if shown and width >= 110:
            line.add(shown, p.accent, cells=min(len(shown), width // 4)).add(" · ", p.faint)
        line.add(self.reads.path.name, p.muted, cells=min(16, len(self.reads.path.name)))
        if self.wanted:
            line.add(" · ", p.faint).add(count(self.wanted), p.strong)
        if self._total and width >= 90:
            line.add(f" of {count(self._total)}", p.muted)
        return line

    # -- showing ------------------------------------------------------------------------------------------------

    def show_reading(self) -> None:
        """Say that another trajectory is being read."""
        self.text.put(None, 0)
        self.frame.refresh_lines()

    def show_rollout(self) -> None:
        """Show where the cursor stands."""
        opened, step = self.cursor.opened, self.step
        record = opened.record
        if record is not None:
            had_image = bool(self.image.source)
            self.image.put(self.reads.path, record.trajectory, step)
            if had_image != bool(self.image.source):
                self.frame.replan()
        self.text.image_note = self.image.note if record is not None else ""
        self.text.find = self.conversation.find = self.find
        note = self._note()
        self.text.note = self.conversation.note = note.text if note is not None else ""
        self.text.put(record, step, opened.problem, self.cursor.match)
        if self._body == "conversation":
            self.conversation.put(record, step, opened.problem, self.cursor.match)
        elif self._body == "tokens":
            self._show_tokens()
        self._show_beside()

    def _show_beside(self) -> None:
        """Show group, steps and rewards for where the cursor stands."""
        opened, step = self.cursor.opened, self.step
        record, row = opened.record, opened.row
        if row is not None:
            version = f" · policy v{row.policy_version}" if row.policy_version else ""
            self.group.title = f"group {row.group} · prompt {row.prompt_id}{version}"
        self.group.put(opened.group, self.n, record, step)
        formula = formula_of(record, opened.group) if record is not None else None
        learning = Learning(opened.uses, opened.validations)
        other = recomputed_text(recomputed(record, opened.group)) if record is not None else ""
        self.reward.put(record, step, formula, learning, other)
        self.frame.refresh_lines()

    def _show_tokens(self) -> None:
        tokens, texts, problem = None, [], ""
        if self.n:
            try:
                tokens = self.reads.now.bodies.tokens(self.n)
                if tokens is not None:
                    texts = self.reads.now.bodies.token_texts(tokens.token_ids[: token_view.LIMIT].tolist())
            except (RecordError, LookupError) as error:
                tokens, problem = None, str(error)
        self.tokens.put(tokens, texts, self.step, problem)

    def _show_body(self, name: str) -> None:
        """Another body in the middle."""
        self._body = self._active = name
        if name == "tokens":
            self._show_tokens()
        elif name == "conversation":
            self.conversation.put(self.cursor.record, self.step, self.cursor.opened.problem, self.cursor.match)
        self.frame.replan()

    # -- moving -------------------------------------------------------------------------------------------------

    def action_step(self, by: int) -> None:
        """Another step of this trajectory."""
        self._go_to(self.step + by)

    def action_first(self) -> None:
        """The first step."""
        self._go_to(0)

    def action_last(self) -> None:
        """The last step."""
        self._go_to(len(self.cursor.steps) - 1)

    def _go_to(self, step: int) -> None:
        if self.cursor.go_to(step):
            self.show_rollout()

    def action_next_penalty(self) -> None:
        """The next penalised step of this trajectory; after the last, the first."""
        if self.cursor.next_penalised():
            self.show_rollout()
        elif self.cursor.record is not None:
            self.say("No step of this trajectory was penalised.")

    def action_search(self) -> None:
        """Find in the steps of this trajectory."""
        hint = "enter finds the next place that holds it; then n and N go on, also to other trajectories"
        ask(self, "Find in this trajectory", self.find[0] if len(self.find) == 1 else "", self.search_here, hint=hint)

    def on_pane_hit(self, message: Pane.Hit) -> None:
        """A click on a neighbour or on a step of the route."""
        match message.what:
            case ("rollout", int(n)):
                self.open_rollout(n, self.step)
            case ("step", int(step)):
                self._go_to(step)
            case ("fold", tuple(key)):
                self.reading.toggle(key)

    def _scrolled_to(self, step: int) -> None:
        """The conversation was scrolled to another step."""
        if self.cursor.go_to(step):
            self._show_beside()

    @property
    def reading(self) -> ReadingPanel:
        """The texts that are shown: of the step, or of all."""
        return self.conversation if self._body == "conversation" else self.text

    def action_open_text(self) -> None:
        """Open the chosen text, or fold it again."""
        if not self.reading.toggle():
            self.say("No text on screen folds.")

    def action_choose_text(self, by: int) -> None:
        """Choose the next text that folds."""
        self.reading.choose(by)

    def action_open_all(self, opened: bool) -> None:
        """Open or fold all texts."""
        self.reading.open_all(opened)

    def action_raw(self) -> None:
        """The exact texts, or the rendered ones; of tokens, their symbols."""
        for panel in (self.text, self.conversation):
            panel.toggle_raw()
        self.frame.refresh_lines()

    # -- what is shown ------------------------------------------------------------------------------------------

    def action_tokens(self) -> None:
        """Tokens instead of text; again for the next colouring; after the last, text."""
        if self._body != "tokens":
            self.tokens.mode = 0
            self._show_body("tokens")
        elif self.tokens.next_mode():
            self.frame.refresh_lines()
        else:
            self._show_body("step")

    def action_conversation(self) -> None:
        """All steps in one scroll, or one at a time."""
        self._show_body("step" if self._body == "conversation" else "conversation")

    def action_prompt(self) -> None:
        """The whole prompt, or its beginning at the first step."""
        self.reading.toggle_prompt()

    def action_image(self) -> None:
        """Show or hide the image."""
        self._image_wanted = not self._image_wanted
        self.frame.replan()

    def action_image_size(self) -> None:
        """Larger or smaller."""
        self._image_large = not self._image_large
        self.frame.replan()

    # -- elsewhere ----------------------------------------------------------------------------------------------

    def action_diff(self) -> None:
        """Beside another rollout of the group or the prompt."""
        if self.cursor.record is not None:
            self.shell.open(Diff(self.reads.path, self.n))

    def action_note(self) -> None:
        """Say something of this trajectory, or change what was said."""
        record = self.cursor.record
        if record is None:
            return
        id_ = record.trajectory.id
        note = self._note()
        hint = "#words are labels: filter with label:NAME or note:WORD · an empty text takes it back"

        def put(text: str) -> None:
            try:
                self.reads.now.notes.put(id_, text)
            except OSError as error:
                self.say(f"The note cannot be written: {error.strerror}.", "error")
            self.show_rollout()

        ask(self, "Note on this trajectory", note.text if note is not None else "", put, hint=hint)

    def _note(self) -> Note | None:
        record = self.cursor.record
        return None if record is None else self.reads.now.notes.read().get(record.trajectory.id)

    def _whole(self) -> Whole | None:
        opened = self.cursor.opened
        if opened.record is None:
            return None
        formula, other = formula_of(opened.record, opened.group), recomputed(opened.record, opened.group)
        return Whole(opened.n, opened.record, opened.uses, formula, other, self._note())

    def shown_text(self) -> str:
        """The whole trajectory as plain text, for pager and editor."""
        whole = self._whole()
        return trajectory_text(whole) if whole is not None else self.cursor.opened.problem

    def shown_name(self) -> str:
        """Named after the trajectory's number."""
        return f"{self.n}.txt"

    def action_copy(self) -> None:
        """Copy the pane that scrolls."""
        lines = self.scrolled.copied
        self.copy("\n".join(lines), f"{count(len(lines))} lines")

    def action_export(self) -> None:
        """The whole trajectory as JSON."""
        whole = self._whole()
        if whole is not None:
            self.export(lambda: export_trajectory(self.reads.path, whole))
