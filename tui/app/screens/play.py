"""Play a task by hand: the conversation, the tools, the rewards so far, and the model's continuation."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ....engine.runs.types import ToolSpec
from ...format import fixed
from ...plain import Whole
from ..destinations import Trajectories
from ..widgets.frame import Box, SplitPart, split
from ..widgets.image_view import ImagePane
from ..widgets.pane import Line, Pane, wrapped
from ..widgets.prompt_bar import ask
from ..widgets.reading import ReadingPanel
from ..widgets.reward_arithmetic import RewardArithmetic
from .reading_screen import ReadingScreen, is_wide

if TYPE_CHECKING:
    from ....engine.launch.play import Continuation, Event, Play, Situation

_HINT = "a call such as {call}, several calls, or plain text · tab completes · ↑ earlier turns · esc cancels"
_IMAGE_ROOM = 18
"""Minimum height of text and image together, in rows, for showing the image."""


class ToolsPanel(Pane):
    """Number, name, description and arguments of each tool."""

    name = title = "tools"
    tools: Sequence[ToolSpec] | None = None
    """None until they are known."""

    def put(self, tools: Sequence[ToolSpec]) -> None:
        if tools != self.tools:
            self.tools = tools
            self.changed(keep_scroll=False)

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        if self.tools is None:
            return []
        lines = [] if self.tools else wrapped(p, "No tools: your turn is the answer, in plain text.", width, p.faint)
        for number, tool in enumerate(self.tools, 1):
            tool_lines = [Line(p).add(f"{number} " if number < 10 else "  ", p.key).add(tool.name, p.strong)]
            tool_lines += wrapped(p, tool.description, width, p.muted, after=Line(p).gap(2))
            for argument in tool.arguments:
                kind = " | ".join(argument.choices) if argument.choices else argument.type
                text = f"{argument.name}{'' if argument.required else '?'}: {kind}  {argument.description}".rstrip()
                tool_lines += wrapped(p, text, width, p.text, after=Line(p).gap(2))
            for line in tool_lines:
                line.hits = [(0, width, ("tool", number))]
            lines += tool_lines
        return lines


class PlayScreen(ReadingScreen):
    """Displays the events of the playing process, and sends it the user's turns."""

    view = "play"

    def __init__(self, run: Path, game: Play) -> None:
        super().__init__()
        self.run_path, self.game = run, game
        self.now: Situation | None = None
        self.tools = ToolsPanel()
        self.conversation = ReadingPanel("conversation", whole=True)
        self.conversation.problem, self.conversation.running = "loading the model and the data…", True
        self.reward = RewardArithmetic()
        self.image = ImagePane()
        self.model = ReadingPanel("model", whole=True, heading="the model's continuation")
        self._waiting = False
        """Whether the model is continuing the rollout."""
        self._model_text = ""
        """The first turn of the model's continuation, once it is known."""
        self._history: list[str] = []

    @property
    def reading(self) -> ReadingPanel:
        return self.model if self._active == "model" and self._model_text else self.conversation

    def panes(self) -> list[Pane]:
        return [self.conversation, self.tools, self.reward, self.image, self.model]

    def tabs(self) -> list[str]:
        return ["conversation", "tools", "reward", *(["model"] if self._model_text else [])]

    def plan(self, width: int, height: int) -> list[Box]:
        if not is_wide(width, height):
            return [Box(self.tab or self.usual, 0, 0, width, height)]
        side = min(56, max(36, width // 3))
        rows = self.reward.rows_for(side - 4) + 2 if self.now is not None and self.now.record.trajectory.steps else 4
        needed = len(self.tools.build(side - 4, height)) + 2
        min_height = max(4, min(rows, height - min(needed, height // 2)))
        tools, reward = split(height, [SplitPart(4), SplitPart(min_height, 0.0)])
        boxes = [Box(name, 0, y, side, h) for name, (y, h) in (("tools", tools), ("reward", reward))]
        x, text, middle = side - 1, width - side + 1, height
        if self._model_text:
            rows = max(4, height // 2)
            middle -= rows - 1
            boxes.append(Box("model", x, middle - 1, text, rows))
        if self.image.source and middle >= _IMAGE_ROOM:
            rows = max(8, min(self.image.rows_for(text - 2) + 2, middle // 2))
            middle -= rows - 1
            boxes.append(Box("image", x, middle - 1, text, rows))
        return [*boxes, Box("conversation", x, 0, text, middle)]

    def status(self, width: int) -> Line:
        line = Line(self.palette)
        if self.now is not None:
            line.add(f"task {self.now.task + 1} of {self.now.tasks}", self.palette.muted)
            if self.now.over:
                line.add(" · over", self.palette.strong)
        return line

    def hint_label(self, action: str, label: str) -> str:
        return "" if action in ("type", "model") and (self.now is None or self.now.over) else label

    def on_mount(self) -> None:
        self.conversation.changed()
        threading.Thread(target=self._listen, name="play", daemon=True).start()

    def on_unmount(self) -> None:
        self.game.send(leave=True)

    def _listen(self) -> None:
        """Pass on the events of the process. Never wait for the app, which may be closing."""
        for event in self.game.events():
            self.call_later(self._arrived, event)
        self.call_later(self._process_ended)

    def _process_ended(self) -> None:
        from ....engine.runs.control.status import look

        self.conversation.running = False
        self.conversation.put(None, 0, look(self.run_path).error or "the process has ended")

    def _arrived(self, event: Event) -> None:
        from ....engine.launch.play import Continuation, Refusal

        if isinstance(event, Refusal):
            self._waiting = False
            self.say(event.message, "error")
        elif isinstance(event, Continuation):
            self._continued(event)
        else:
            self._show(event)
        self.frame.replan()

    def _continued(self, event: Continuation) -> None:
        if not self._model_text and not self.is_wide:
            self.action_show_pane("model")
        self._waiting, self._model_text = not event.over, event.text
        if event.over:
            self.app.clear_notifications()
        total = event.record.reward if event.over else None
        self.model.heading = "the model's continuation" + (f" · reward {fixed(total)}" if total is not None else "")
        self.model.running = not event.over
        self.model.put(event.record, event.step)

    def _show(self, now: Situation) -> None:
        trajectory = now.record.trajectory
        step = max(0, len(trajectory.steps) - 1)
        self.now, self._model_text = now, ""
        if self.tab == "model":
            self.tab = ""
        self.tools.put(now.tools)
        self.conversation.running = not now.over
        self.conversation.put(now.record, step)
        self.reward.put(Whole(0, now.record) if trajectory.steps else None, step)
        self.reward.title = "reward" if now.over else "reward so far"
        self.image.put(self.run_path, trajectory, step)

    # -- turns ------------------------------------------------------------------------------------------------------

    def action_type(self, begun: str = "") -> Awaitable[None] | None:
        now = self.now
        if now is None or now.over:
            self.say("This rollout is over: a plays the task again, n the next one." if now else "Still loading.")
            return
        example = template(now.tools[0]) if now.tools else "LOOK(x=1)"

        def send(text: str) -> None:
            if text:
                self.game.send(turn=text)

        def complete(text: str) -> list[str]:
            word = text.split()[-1] if text.split() and not text.endswith(" ") else ""
            return [text[: len(text) - len(word)] + template(t) for t in now.tools if word and t.name.startswith(word)]

        hint = _HINT.format(call=example) if now.tools else "the answer, in plain text · esc cancels"
        return ask(self, "Your turn", begun, send, hint=hint, complete=complete, history=self._history)

    def action_choose(self, number: int) -> Awaitable[None] | None:
        if self.now is not None and number <= len(self.now.tools):
            return self.action_type(template(self.now.tools[number - 1]))
        return None

    def on_pane_hit(self, message: Pane.Hit) -> None:
        match message.what:
            case ("tool", int(number)):
                self.action_choose(number)
            case ("fold", tuple(key)):
                self.reading.toggle(key)

    def action_model(self) -> Awaitable[None] | None:
        if self.now is None or self.now.over or self._waiting:
            return None
        if self._model_text:
            return self.action_type(self._model_text)
        self._waiting = True
        self.say("The model continues from here…")
        self.game.send(model=True)
        return None

    def action_another(self, which: str) -> None:
        if self.now is not None:
            self.game.send(**{which: True})

    def action_recorded(self) -> None:
        self.shell.open(Trajectories(self.run_path))


def template(tool: ToolSpec) -> str:
    """Return a call template to complete: `LOOK(x=, y=)`."""
    return f"{tool.name}({', '.join(f'{a.name}=' for a in tool.arguments if a.required)})"
